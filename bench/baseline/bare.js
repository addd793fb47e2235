// The baseline of scripts/bench: a Durable Object that hibernates and does nothing but pass every message on to its other
// socket, and the same two ways to it as a namespace has: handed over to the object, or pumped by the Worker.

export class Bare {
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

  webSocketMessage(from, message) {
    for (const socket of this.sockets) if (socket !== from) socket.send(message);
  }

  webSocketClose(socket, code) {
    this.sockets = this.sockets.filter((other) => other !== socket);
    socket.close(code === 1005 || code === 1006 ? 1001 : code);
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
  // /ns/{name}/v1/ws is handed over, /v1/ws?{name} is pumped.
  async fetch(request, env) {
    const { pathname, search } = new URL(request.url);
    const direct = /^\/ns\/([^/]+)\/v1\/ws$/.exec(pathname);
    const stub = env.BARE.getByName(direct ? direct[1] : search.slice(1));
    return direct ? stub.fetch(request) : front(stub);
  },
};
