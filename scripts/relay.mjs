// Runs the built relay on raw workerd: writes a workerd configuration from wrangler.toml, starts the runtime, says where
// it listens, and ends it when told to. workerd drains for ever on SIGTERM, so it is killed after a moment; what the relay
// has accepted is on disk by then.

import { spawn, spawnSync } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const ROOT = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const GRACE_MS = 500;
const USAGE = `usage: scripts/relay [--port N] [--listen ADDR] [--data DIR] [--build DIR] [--around FILE] [--verbose]
                     [--outbound ADDR] [--secrets DIR] [--var NAME=VALUE]...

Serves a relay until stopped and prints "listening on http://ADDR:PORT" once it accepts connections.

  --port N          port; 0 (the default) takes a free one
  --listen ADDR     address, 127.0.0.1 unless given; put a TLS proxy in front of anything public
  --data DIR        where namespaces are kept; a temporary folder, removed at the end, unless given
  --build DIR       what to serve, relay-worker/build unless given
  --around FILE     a module that stands around the relay, which it imports as "./index.js"
  --outbound ADDR   every request that the relay itself makes goes there instead, as plain HTTP with its own Host, and
                    X-Forwarded-Proto for the scheme it had: for tests
  --secrets DIR     the keys for pushes (docs/push.md), one file each, named as the secret; arguments are seen by every
                    user of the machine
  --verbose         the runtime tells more
  --var NAME=VALUE  a variable of wrangler.toml with another value (may be repeated)

A local relay raises the limits of new connections per address, RELAY_CONNECTIONS_PER_MINUTE and
RELAY_PIPE_CONNECTIONS_PER_MINUTE, to 100000.

The relay reaches public addresses only, and the one that APNS_HOST or FCM_HOST names as http://HOST:PORT: a forwarder on
this machine or in its network (docs/push.md).`;

function die(message) {
  console.error(`error: ${message}`);
  process.exit(2);
}

function options() {
  let values;
  try {
    ({ values } = parseArgs({
      options: {
        port: { type: "string", default: "0" },
        listen: { type: "string", default: "127.0.0.1" },
        data: { type: "string" },
        build: { type: "string", default: path.join(ROOT, "relay-worker/build") },
        around: { type: "string" },
        outbound: { type: "string" },
        secrets: { type: "string" },
        verbose: { type: "boolean", default: false },
        var: { type: "string", multiple: true, default: [] },
        help: { type: "boolean", short: "h", default: false },
      },
    }));
  } catch (error) {
    die(`${error.message}\n${USAGE}`);
  }
  if (values.help) {
    console.log(USAGE);
    process.exit(0);
  }
  if (!/^\d{1,5}$/.test(values.port) || Number(values.port) > 65535) die(`--port ${values.port} is no port`);
  const vars = { RELAY_CONNECTIONS_PER_MINUTE: "100000", RELAY_PIPE_CONNECTIONS_PER_MINUTE: "100000" };
  if (values.secrets !== undefined) Object.assign(vars, secrets(values.secrets));
  for (const pair of values.var) {
    const at = pair.indexOf("=");
    if (at < 1) die(`--var ${pair}: NAME=VALUE expected`);
    vars[pair.slice(0, at)] = pair.slice(at + 1);
  }
  return { ...values, vars };
}

const SECRETS = ["APNS_KEY", "APNS_KEY_ID", "APNS_TEAM_ID", "APNS_TOPIC", "FCM_SERVICE_ACCOUNT", "VAPID_PRIVATE_KEY", "VAPID_SUBJECT"];

// A missing file is a push that is off.
function secrets(folder) {
  const found = {};
  try {
    const names = fs.readdirSync(folder).filter((name) => SECRETS.includes(name));
    for (const name of names) found[name] = fs.readFileSync(path.join(folder, name), "utf8").trimEnd();
  } catch (error) {
    die(`--secrets ${folder}: ${error.message}`);
  }
  return found;
}

// The part of TOML that wrangler.toml keeps to: tables, arrays of tables, and one-line values that are JSON too.
function readToml(file) {
  const root = {};
  let table = root;
  fs.readFileSync(file, "utf8").split("\n").forEach((raw, index) => {
    const line = raw.trim();
    if (line === "" || line.startsWith("#")) return;
    const header = /^\[(\[)?([\w.-]+)\]?\]$/.exec(line);
    const entry = /^([\w-]+)\s*=\s*(.+)$/.exec(line);
    if (header) table = open(root, header[2].split("."), header[1] !== undefined);
    else if (entry) table[entry[1]] = value(entry[2]);
    else die(`${file}:${index + 1}: not understood`);

    function value(text) {
      try {
        return JSON.parse(text);
      } catch {
        die(`${file}:${index + 1}: a value on one line, as in JSON, is needed`);
      }
    }
  });
  return root;
}

function open(root, names, isArray) {
  let table = root;
  names.forEach((name, i) => {
    if (isArray && i === names.length - 1) {
      table[name] ??= [];
      table[name].push({});
      table = table[name].at(-1);
    } else {
      table = table[name] ??= {};
      if (Array.isArray(table)) table = table.at(-1);
    }
  });
  return table;
}

// A Cap'n Proto text literal: printable ASCII as it is, every other byte escaped.
function quote(text) {
  let out = '"';
  for (const byte of Buffer.from(text, "utf8")) {
    const plain = byte >= 0x20 && byte < 0x7f && byte !== 0x22 && byte !== 0x5c;
    out += plain ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, "0")}`;
  }
  return `${out}"`;
}

// The hosts that the operator has named as plain HTTP, which only a forwarder of one's own is: everything else stays
// barred from addresses that are not public, whatever names a subscription makes the relay look up.
function forwarders(vars) {
  const origins = ["APNS_HOST", "FCM_HOST"].map((name) => {
    const value = vars[name] ?? "";
    if (!/^http:\/\//i.test(value)) return undefined;
    if (URL.canParse(value)) return new URL(value);
    return die(`${name}: ${value} is no address`);
  });
  return [...new Map(origins.filter((url) => url !== undefined).map((url) => [url.origin, url])).values()];
}

// Where the relay's own requests go. The runtime's default is the internet, public addresses alone.
function outward(vars, outbound) {
  const ways = forwarders(vars);
  if (ways.length === 0 && outbound === undefined) return undefined;
  const external = (name, address) =>
    `(name = ${quote(name)}, external = (address = ${quote(address)}, http = (forwardedProtoHeader = "X-Forwarded-Proto")))`;
  const binding = (name, service) => `(name = ${quote(name)}, service = ${quote(service)})`;
  const away = outbound === undefined ? "internet" : "away";
  return {
    services: [
      `(name = "outward", worker = .outward)`,
      ...(outbound === undefined ? [] : [external(away, outbound)]),
      ...ways.map((url) => external(url.origin, url.host)),
    ],
    bindings: [binding("away", away), ...ways.map((url) => binding(url.origin, url.origin))],
    script: "export default { fetch: (request, env) => (env[new URL(request.url).origin] ?? env.away).fetch(request) };",
  };
}

// Two services with the same code: what holds the ends of pipes stores nothing, but the runtime makes a database file for
// every object whose service has a disk, which would take a third of the time that opening a pipe takes.
function configuration(wrangler, vars, data, address, modules, outbound) {
  const out = outward(vars, outbound);
  const objects = wrangler.durable_objects.bindings;
  const stores = (o) => o.class_name !== "PipeEnd";
  const service = (o) => (stores(o) ? "relay" : "ends");
  const bindings = [
    ...Object.entries(vars).map(([name, value]) => `(name = ${quote(name)}, text = ${quote(String(value))})`),
    ...objects.map(
      (o) =>
        `(name = ${quote(o.name)}, durableObjectNamespace = (className = ${quote(o.class_name)}, serviceName = ${quote(service(o))}))`,
    ),
  ];
  const worker = (own, storage) => `(
  modules = [
    ${modules.map((name) => `(name = ${quote(name)}, ${name.endsWith(".wasm") ? "wasm" : "esModule"} = embed ${quote(name)})`).join(",\n    ")},
  ],
  compatibilityDate = ${quote(wrangler.compatibility_date)},
  compatibilityFlags = [${(wrangler.compatibility_flags ?? []).map(quote).join(", ")}],
  bindings = [
    ${bindings.join(",\n    ")},
  ],
  durableObjectNamespaces = [${own.map((o) => `(className = ${quote(o.class_name)}, uniqueKey = ${quote(`skald-${o.class_name}`)}, enableSql = true)`).join(", ")}],
  durableObjectStorage = (${storage}),${out === undefined ? "" : `\n  globalOutbound = "outward",`}
);`;
  // A unique key names the folder of its class inside the data folder: never change it.
  return `using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "relay", worker = .relay),
    (name = "ends", worker = .ends),
    (name = "data", disk = (path = ${quote(data)}, writable = true)),
    ${(out?.services ?? []).map((service) => `${service},`).join("\n    ")}
  ],
  sockets = [(name = "http", address = ${quote(address)}, http = (), service = "relay")],
);

const relay :Workerd.Worker = ${worker(objects.filter(stores), `localDisk = "data"`)}

const ends :Workerd.Worker = ${worker(objects.filter((o) => !stores(o)), "inMemory = void")}
${out === undefined ? "" : outwardWorker(wrangler, out)}`;
}

function outwardWorker(wrangler, { bindings, script }) {
  return `
const outward :Workerd.Worker = (
  modules = [(name = "outward.js", esModule = ${quote(script)})],
  compatibilityDate = ${quote(wrangler.compatibility_date)},
  bindings = [${bindings.join(", ")}],
);
`;
}

// The runtime's own binary, without the Node script around it: signals and descriptors go straight to it.
function workerdBinary() {
  const require = createRequire(path.join(ROOT, "node_modules/workerd/package.json"));
  const arch = process.arch === "x64" ? "64" : process.arch;
  try {
    return require.resolve(`@cloudflare/workerd-${process.platform}-${arch}/bin/workerd`);
  } catch {
    die(`workerd is not installed for ${process.platform} ${process.arch}; run scripts/setup`);
  }
}

// With util-linux the runtime ends with this process even when this process is killed.
function tied(command) {
  const has = spawnSync("setpriv", ["--pdeathsig", "KILL", "true"], { stdio: "ignore" });
  return has.status === 0 ? ["setpriv", "--pdeathsig", "KILL", ...command] : command;
}

function main() {
  const { port, listen, data, build, around, outbound, verbose, vars } = options();
  const wrangler = readToml(path.join(ROOT, "wrangler.toml"));
  const temporary = fs.mkdtempSync(path.join(os.tmpdir(), "skald-relay-"));
  const cleanUp = () => fs.rmSync(temporary, { recursive: true, force: true, maxRetries: 5, retryDelay: 20 });
  process.on("exit", cleanUp);

  const folder = path.resolve(data ?? path.join(temporary, "data"));
  const host = listen.includes(":") && !listen.startsWith("[") ? `[${listen}]` : listen;
  try {
    fs.mkdirSync(folder, { recursive: true, mode: 0o700 });
    const modules = ["index.js", "index_bg.wasm"];
    for (const name of modules) fs.copyFileSync(path.join(build, name), path.join(temporary, name));
    if (around !== undefined) {
      // The first module is the one that is served.
      modules.unshift("around.js");
      fs.copyFileSync(around, path.join(temporary, "around.js"));
    }
    const text = configuration(wrangler, { ...wrangler.vars, ...vars }, folder, `${host}:${port}`, modules, outbound);
    fs.writeFileSync(path.join(temporary, "config.capnp"), text);
  } catch (error) {
    die(`${error.message}${error.path?.startsWith(build) ? "; build it with scripts/build-relay" : ""}`);
  }

  const more = verbose ? ["--verbose"] : [];
  const [command, ...rest] = tied([workerdBinary(), "serve", path.join(temporary, "config.capnp"), "--control-fd=3", ...more]);
  const child = spawn(command, rest, { stdio: ["ignore", "inherit", "inherit", "pipe"] });
  let stopping = false;

  let control = "";
  child.stdio[3].setEncoding("utf8").on("data", (chunk) => {
    const lines = (control + chunk).split("\n");
    control = lines.pop();
    for (const line of lines) {
      const event = JSON.parse(line);
      if (event.event === "listen") console.log(`listening on http://${host}:${event.port}`);
    }
  });
  child.on("error", (error) => die(`workerd did not start: ${error.message}`));
  child.on("exit", (code, signal) => {
    if (stopping) process.exit(0);
    die(`workerd ended by itself (${signal ?? `exit code ${code}`})`);
  });

  const stop = () => {
    if (stopping) return child.kill("SIGKILL");
    stopping = true;
    child.kill("SIGTERM");
    setTimeout(() => child.kill("SIGKILL"), GRACE_MS);
  };
  for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"]) process.on(signal, stop);
}

main();
