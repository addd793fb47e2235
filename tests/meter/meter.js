// Stands around the relay and counts what the platform would charge for. `GET /meter` tells the sums and wakes no object:
// objects of one runtime share this module.

import Relay, * as relay from "./index.js";

const counts = {
  // Calls of an object from outside: a connection is one.
  requests: 0,
  // WebSocket messages and ends of connections that reached an object.
  frames: 0,
  texts: 0,
  closes: 0,
  alarms: 0,
  // Objects made: for the first time, or after an eviction.
  wakings: 0,
  rowsRead: 0,
  rowsWritten: 0,
  // Each is charged as a row written.
  alarmsSet: 0,
  wipes: 0,
};
// A cursor knows what it cost only when it has been read to its end.
let cursors = [];

function settle() {
  for (const cursor of cursors) {
    counts.rowsRead += cursor.rowsRead;
    counts.rowsWritten += cursor.rowsWritten;
  }
  cursors = [];
}

function tap(object, method, after) {
  const prototype = Object.getPrototypeOf(object);
  const original = prototype[method];
  if (original.tapped) return;
  prototype[method] = function (...parameters) {
    const result = original.apply(this, parameters);
    after(result);
    return result;
  };
  prototype[method].tapped = true;
}

export { PipeEnd, PushLog } from "./index.js";

export class Namespace {
  constructor(state, env) {
    counts.wakings += 1;
    tap(state.storage.sql, "exec", (cursor) => cursors.push(cursor));
    tap(state.storage, "setAlarm", () => (counts.alarmsSet += 1));
    tap(state.storage, "deleteAll", () => (counts.wipes += 1));
    this.object = new relay.Namespace(state, env);
  }

  fetch(request) {
    counts.requests += 1;
    return this.object.fetch(request);
  }

  alarm() {
    counts.alarms += 1;
    return this.object.alarm();
  }

  webSocketMessage(socket, message) {
    counts[typeof message === "string" ? "texts" : "frames"] += 1;
    settle();
    return this.object.webSocketMessage(socket, message);
  }

  webSocketClose(...parameters) {
    counts.closes += 1;
    return this.object.webSocketClose(...parameters);
  }

  webSocketError(...parameters) {
    counts.closes += 1;
    return this.object.webSocketError(...parameters);
  }
}

export default class extends Relay {
  async fetch(request) {
    if (new URL(request.url).pathname !== "/meter") return super.fetch(request);
    settle();
    return Response.json(counts);
  }
}
