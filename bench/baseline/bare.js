// The baselines of scripts/bench: a Durable Object that hibernates and does nothing but pass every message on to its other
// socket, one that writes every message into a row and says so, and the same two ways to them as a namespace has: handed
// over to the object, or pumped by the Worker.

const WRITTEN = new Uint8Array(8);

class Base {
  constructor(state) {
    this.state = state;
    // Memory goes with hibernation; sockets do not.
    this.sockets = state.getWebSockets();
  }

  fetch() {
    const [client, server] = Object.values(new WebSocketPair());
    this.state.acceptWebSocket(server);
    this.sockets.push(server);
    return new Response(null, { status: 101, webSocket: client });
  }

  webSocketClose(socket, code) {
    this.sockets = this.sockets.filter((other) => other !== socket);
    socket.close(code === 1005 || code === 1006 ? 1001 : code);
  }
}

export class Bare extends Base {
  webSocketMessage(from, message) {
    for (const socket of this.sockets) if (socket !== from) socket.send(message);
  }
}

export class Keeper extends Base {
  constructor(state) {
    super(state);
    this.sql = state.storage.sql;
    this.sql.exec("CREATE TABLE IF NOT EXISTS kept (seq INTEGER PRIMARY KEY, message BLOB NOT NULL)");
  }

  webSocketMessage(from, message) {
    this.sql.exec("INSERT INTO kept (message) VALUES (?)", message);
    // The platform lets this out when the row is on the disk.
    from.send(WRITTEN);
  }
}

async function front(stub) {
  const [client, server] = Object.values(new WebSocketPair());
  const response = await stub.fetch("https://object/internal", { headers: { Upgrade: "websocket" } });
  const object = response.webSocket;
  server.accept();
  object.accept();
  for (const [from, to] of [[server, object], [object, server]]) {
    from.addEventListener("message", ({ data }) => to.send(data));
    from.addEventListener("close", ({ code }) => {
      for (const socket of [from, to]) socket.close(code === 1005 || code === 1006 ? 1001 : code);
    });
  }
  return new Response(null, { status: 101, webSocket: client });
}

export default {
  // /ns/{name}/v1/ws and /keep/{name}/v1/ws are handed over, /v1/ws?{name} is pumped.
  async fetch(request, env) {
    const { pathname, search } = new URL(request.url);
    const [, kind, name] = /^\/(ns|keep)\/([^/]+)\/v1\/ws$/.exec(pathname) ?? [];
    if (kind === "keep") return env.KEEPER.getByName(name).fetch(request);
    return kind ? env.BARE.getByName(name).fetch(request) : front(env.BARE.getByName(search.slice(1)));
  },
};
