// An agent and a phone of their own pair through a relay, the phone with a made-up push token, and go. What the agent then
// sends has the relay push, by the code and with the configuration that it always has. The outcome is read where an
// operator would read it: in the log of a relay that this script starts, or in /healthz of one that runs.

import { spawn, spawnSync } from "node:child_process";
import { generateKeyPairSync, randomBytes } from "node:crypto";
import fs from "node:fs";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const ROOT = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const BIN = process.env.BIN ?? path.join(ROOT, "target/debug");
const PATIENCE_MS = 60_000;
// Outcomes of one kind are told once a minute, by the next one: from a relay elsewhere it may take a second push.
const TELLING_MS = 150_000;
const AGAIN_MS = 20_000;
const USAGE = `usage: scripts/push-smoke --relay URL [SERVICE]...
       scripts/push-smoke --secrets DIR [--var NAME=VALUE]... [SERVICE]...

Has a relay push to the services that it is configured for, with made-up tokens, and explains what they answer. Nobody is
rung. Exit code 0: every service accepts who we are.

  --relay URL       a relay that runs, wss://relay.example.org/v1/ws: the proof for a deployment
  --secrets DIR     starts a relay on this machine with the secrets in this folder, one file each (docs/push.md)
  --var NAME=VALUE  for that relay, as scripts/relay has it
  --outbound ADDR   for that relay, as scripts/relay has it: for tests
  --token TOKEN     not a made-up token but a real one, for one SERVICE: its device rings
  SERVICE           apns, fcm or web; all that are configured unless given

A relay on this machine reaches APNs through a forwarder; unless APNS_HOST is given, this starts Caddy for it.`;

const SERVICES = ["apns", "fcm", "web"];
const PLATFORMS = { apns: "ios", fcm: "android", web: "web" };

// What an answer to a made-up token says of the relay. `good`: the service has accepted who we are.
const MEANING = {
  "apns gone": [true, "Apple accepts this relay's key and topic, and does not know the token, as it should not."],
  "apns refused credentials": [false, "Apple does not accept the key: APNS_KEY, APNS_KEY_ID and APNS_TEAM_ID must belong together, and the key must be for APNs (and for this environment)."],
  "apns refused expired-credentials": [false, "Apple calls the relay's token too old: the clock of the relay's machine is wrong."],
  "apns refused topic": [false, "Apple accepts the key, and not APNS_TOPIC: it must be the bundle id of the app, of the same team."],
  "fcm gone": [true, "Google accepts the service account, and does not know the token, as it should not."],
  "fcm refused rejected": [true, "Google accepts the service account, and calls the token no token, as it should."],
  "fcm refused sender": [true, "Google accepts the service account; the token is another project's."],
  "fcm refused credentials": [false, "Google does not accept the service account: its key may be revoked, the Firebase Cloud Messaging API may be off for the project, or the account may lack the role to send (Firebase Cloud Messaging API Admin)."],
  "web gone": [true, "The push service accepts this relay's VAPID key, and does not know the subscription, as it should not."],
  "web refused rejected": [true, "The push service accepts the request's form, and calls the subscription none, as it should."],
  "web refused credentials": [true, "The push service answers that the subscription is not this key's, as a made-up one cannot be. With a real subscription this would mean that VAPID_PRIVATE_KEY has changed since it was made."],
  "unavailable busy": [false, "The service has had enough requests for now. Try again in some minutes; for APNs, another relay with the same key may present other tokens."],
  "unavailable broken": [false, "The service, or a forwarder before it, answers that it is broken. Try again; if it stays so, look at the forwarder."],
  "unavailable network": [false, "No connection. On your own machine: name resolution and firewall; for APNs, whether the forwarder runs and APNS_HOST names it (docs/push.md)."],
  "unavailable timeout": [false, "No answer within 30 s: see whether a firewall swallows the connection."],
  "unavailable nonsense": [false, "Something answered that is not the service: see what APNS_HOST or FCM_HOST names."],
  "refused redirect": [false, "Something that is not the service sends us elsewhere: see what APNS_HOST or FCM_HOST names."],
  "refused malformed-token": [false, "The token is none of this service's."],
};

const wanted = options();
const folder = fs.mkdtempSync(path.join(os.tmpdir(), "skald-smoke."));
const children = [];
process.on("exit", () => {
  for (const child of children) child.kill("SIGKILL");
  fs.rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 50 });
});
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => process.exit(130));

try {
  process.exitCode = (await main()) ? 0 : 1;
} catch (error) {
  die(error.message);
}
process.exit();

async function main() {
  const relay = wanted.relay === undefined ? await ownRelay() : { url: wanted.relay };
  relay.health = relay.url.replace(/^ws/, "http").replace(/\/v1\/ws$/, "/healthz");
  const { push } = await health(relay);
  if (push === undefined) die(`${relay.health} says nothing of pushes: that relay is of an older version`);
  for (const service of SERVICES) console.log(`${service}: ${push[service].state}`);
  // What is wrong with a setting is told once, when it is first needed.
  for (const line of (relay.log?.() ?? "").split("\n").filter((line) => line.includes("pushes by"))) console.log(line);
  const services = wanted.services.length > 0 ? wanted.services : SERVICES.filter((name) => push[name].state === "on");
  const off = services.filter((name) => push[name].state !== "on");
  if (off.length > 0) die(`${off.join(", ")}: not on; the relay's log says what is wrong (docs/push.md)`);
  if (services.length === 0) die("this relay pushes nowhere; its log says what is wrong, if anything is (docs/push.md)");

  const agent = await startAgent(relay);
  let good = true;
  for (const service of services) good = (await smoke(relay, agent, service)) && good;
  return good;
}

// One service: pair, go, be sent something, and see what came of it.
async function smoke(relay, agent, service) {
  const token = wanted.token ?? madeUp(service);
  const before = (await health(relay)).push[service];
  const phone = { ...process.env, SKALD_PHONE_DIR: path.join(folder, `phone-${service}`) };
  const pairing = spawn(path.join(BIN, "skaldctl"), ["pair", "--json"], { env: agent, stdio: ["ignore", "pipe", "inherit"] });
  children.push(pairing);
  const code = await firstLine(pairing);
  const name = `push-smoke ${service}`;
  const paired = spawnSync(
    path.join(BIN, "skald-phone"),
    ["pair", "--name", name, "--push-token", `${PLATFORMS[service]}:${token}`, "-"],
    { env: phone, input: code, encoding: "utf8", timeout: PATIENCE_MS },
  );
  if (paired.status !== 0) die(`the phone did not pair: ${paired.stderr.trim().split("\n").pop()}`);
  let asked = 0;
  const outcome = await until(async () => {
    if (Date.now() - asked > AGAIN_MS) {
      asked = Date.now();
      ctl(agent, "notify", "push-smoke", "A push that the operator of this relay asked for.");
    }
    return outcomeOf(relay, service, before);
  }, undefined, relay.log === undefined ? TELLING_MS : PATIENCE_MS);
  const gone = JSON.parse(ctl(agent, "devices", "--json")).some((device) => device.name === name && device.push === "gone");
  if (outcome === undefined && !gone) {
    console.log(`\n${service}: nothing was told. Try again, and watch the relay's log (scripts/wrangler tail).`);
    return false;
  }
  const { kind, reason } = outcome ?? { kind: "gone", reason: "" };
  const real = wanted.token !== undefined;
  const known = MEANING[`${service} ${kind} ${reason}`] ?? MEANING[`${service} ${kind}`] ?? MEANING[`${kind} ${reason}`];
  const sent = kind === "sent";
  const [good, meaning] = sent
    ? [real, real ? "The service took it; the device rings." : "The service took a push for a made-up token, which no real one does: something else answers in its place."]
    : real && kind === "gone"
      ? [false, "The service accepts who we are, and does not know this token: the app has to give a new one, or it is one of another environment (sandbox)."]
      : (known ?? [false, "See the table in docs/push.md."]);
  console.log(`\n${service}: ${kind}${reason === "" ? "" : `, ${reason}`}\n  ${meaning}`);
  return good;
}

function outcomeOf(relay, service, before) {
  if (relay.log !== undefined) {
    const line = new RegExp(`^push ns=\\w+ service=${service} outcome=(\\S+) reason=(\\S+) `, "m").exec(relay.log());
    return line === null ? undefined : { kind: line[1], reason: line[2] };
  }
  return health(relay).then(({ push }) => {
    const news = Object.entries(push[service]).filter(([kind, now]) => now.count > (before[kind]?.count ?? 0));
    const [kind, { reason }] = news.sort(([, a], [, b]) => b.last.localeCompare(a.last))[0] ?? [undefined, {}];
    return kind === undefined ? undefined : { kind, reason };
  });
}

// --- the parties

async function ownRelay() {
  const vars = [...wanted.vars];
  const apns = wanted.services.length === 0 || wanted.services.includes("apns");
  if (apns && fs.existsSync(path.join(wanted.secrets, "APNS_KEY")) && !vars.some((pair) => pair.startsWith("APNS_HOST="))) {
    vars.push(`APNS_HOST=http://127.0.0.1:${await startForwarder()}`);
  }
  const log = [];
  const more = vars.flatMap((pair) => ["--var", pair]);
  if (wanted.outbound !== undefined) more.push("--outbound", wanted.outbound);
  const child = start(path.join(ROOT, "scripts/relay"), ["--data", path.join(folder, "relay"), "--secrets", wanted.secrets, ...more], process.env, log);
  const port = await until(() => /^listening on .*:(\d+)$/m.exec(log.join(""))?.[1], child);
  if (port === undefined) die(`the relay did not start:\n${log.join("")}`);
  return { url: `ws://127.0.0.1:${port}/v1/ws`, log: () => log.join("") };
}

async function startForwarder() {
  const port = await freePort();
  const log = [];
  const env = { ...process.env, HOME: folder, XDG_DATA_HOME: folder, XDG_CONFIG_HOME: folder, APNS_FORWARDER_PORT: String(port) };
  const child = start("caddy", ["run", "--config", path.join(ROOT, "docs/Caddyfile.apns"), "--adapter", "caddyfile"], env, log);
  const up = await until(() => reachable(port), child);
  if (!up) die(`a relay on this machine needs a forwarder to reach APNs, and Caddy did not start (Debian: apt install caddy); or give --var APNS_HOST=…\n${log.join("")}`);
  return port;
}

async function startAgent(relay) {
  const env = {
    ...process.env,
    SKALD_AGENTD_DIR: path.join(folder, "run"),
    SKALD_AGENTD_STATE_DIR: path.join(folder, "state"),
    SKALD_AGENTD_CONFIG: path.join(folder, "config.toml"),
  };
  const settings = `relay_url = "${relay.url}"\nnotify_delay_secs = 0\nrequire_device_confirmation = false\n`;
  fs.writeFileSync(env.SKALD_AGENTD_CONFIG, settings, { mode: 0o600 });
  const log = [];
  const child = start(path.join(BIN, "skald-agentd"), ["run"], env, log);
  const connected = await until(() => {
    const status = spawnSync(path.join(BIN, "skaldctl"), ["status", "--json"], { env, encoding: "utf8" });
    return status.status === 0 && JSON.parse(status.stdout).relay.connected;
  }, child);
  if (!connected) die(`the relay at ${relay.url} is not reached:\n${log.slice(-3).join("")}`);
  return env;
}

function ctl(env, ...words) {
  const done = spawnSync(path.join(BIN, "skaldctl"), words, { env, encoding: "utf8" });
  if (done.status !== 0) die(`skaldctl ${words[0]}: ${done.stderr.trim()}`);
  return done.stdout;
}

// --- tools

function madeUp(service) {
  if (service === "apns") return randomBytes(32).toString("hex");
  if (service === "fcm") return `${randomBytes(16).toString("base64url")}:APA91b${randomBytes(100).toString("base64url")}`;
  const { publicKey } = generateKeyPairSync("ec", { namedCurve: "prime256v1" });
  const { x, y } = publicKey.export({ format: "jwk" });
  const point = Buffer.concat([Buffer.of(4), Buffer.from(x, "base64url"), Buffer.from(y, "base64url")]);
  const endpoint = `https://fcm.googleapis.com/fcm/send/${randomBytes(8).toString("base64url")}:APA91b${randomBytes(100).toString("base64url")}`;
  return JSON.stringify({ endpoint, keys: { p256dh: point.toString("base64url"), auth: randomBytes(16).toString("base64url") } });
}

async function health(relay) {
  const response = await fetch(relay.health).catch((error) => die(`${relay.health}: ${error.cause?.message ?? error.message}`));
  if (!response.ok) die(`${relay.health} answers ${response.status}`);
  return response.json();
}

function start(command, words, env, log) {
  const child = spawn(command, words, { env, stdio: ["ignore", "pipe", "pipe"] });
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => log.push(text));
  child.on("error", (error) => log.push(`${error.message}\n`));
  children.push(child);
  return child;
}

async function until(done, child, patience = PATIENCE_MS) {
  for (let end = Date.now() + patience; Date.now() < end; ) {
    const result = await done();
    if (result) return result;
    if (child !== undefined && (child.exitCode !== null || child.pid === undefined)) return undefined;
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  return undefined;
}

function firstLine(child) {
  return new Promise((resolve) => {
    let text = "";
    child.stdout.setEncoding("utf8").on("data", (chunk) => {
      text += chunk;
      if (text.includes("\n")) resolve(text.slice(0, text.indexOf("\n") + 1));
    });
    child.on("exit", () => resolve(text));
  });
}

function freePort() {
  return new Promise((resolve) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}

function reachable(port) {
  return new Promise((resolve) => {
    const socket = net.connect(port, "127.0.0.1", () => resolve(true));
    socket.on("error", () => resolve(false)).on("connect", () => socket.destroy());
  });
}

function options() {
  let parsed;
  try {
    parsed = parseArgs({
      allowPositionals: true,
      options: {
        relay: { type: "string" },
        secrets: { type: "string" },
        outbound: { type: "string" },
        token: { type: "string" },
        var: { type: "string", multiple: true, default: [] },
        help: { type: "boolean", short: "h", default: false },
      },
    });
  } catch (error) {
    die(`${error.message}\n${USAGE}`);
  }
  const { values, positionals } = parsed;
  if (values.help) {
    console.log(USAGE);
    process.exit(0);
  }
  const unknown = positionals.find((name) => !SERVICES.includes(name));
  if (unknown !== undefined) die(`${unknown}: apns, fcm or web`);
  if ((values.relay === undefined) === (values.secrets === undefined)) die(`either --relay or --secrets\n${USAGE}`);
  if (values.relay !== undefined && !/^wss?:\/\/.+\/v1\/ws$/.test(values.relay)) die(`--relay ${values.relay}: wss://…/v1/ws expected`);
  if (values.token !== undefined && positionals.length !== 1) die("--token is for one SERVICE");
  return { ...values, vars: values.var, services: positionals };
}

function die(message) {
  console.error(`error: ${message}`);
  process.exit(2);
}
