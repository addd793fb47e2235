// The sockets and the timer of one object, in JavaScript, so that they outlive the wasm instance: when that is rebuilt
// after a panic, or out of memory, the object's Rust side is gone, its handler throws, and nobody else would ever close
// the sockets.

const MESSAGE = 0;
const CLOSED = 1;
const TIMER = 2;

// Has the runtime take no event of an object for a while, which stops its reading. Nothing may be thrown in here: that would
// cut every socket of the object.
export function hold(state, delay) {
  state.blockConcurrencyWhile(() => new Promise((done) => setTimeout(done, delay))).catch(() => {});
}

// `awaken` is a call into wasm that does nothing. After a panic the wasm is rebuilt by whatever calls it next; were that a
// closure of the old instance, it would run on the memory of the new one. A closure that holds nothing may, and from then
// on all others of the old instance throw.

// `handler` as a listener of one socket, which it closes when the handler throws: nobody else would. Or of none.
export function guarded(socket, awaken, handler) {
  return (event) => {
    try {
      awaken();
      handler(event);
    } catch (error) {
      shut(socket, 1001, "restarting");
      throw error;
    }
  };
}

// Closed already is no error.
function shut(socket, code, reason) {
  try {
    socket?.close(code, reason);
  } catch {}
}

export class Wires {
  // handler(kind, which, value, data): value is the size of a message or the code of a close.
  constructor(awaken, handler) {
    this.awaken = awaken;
    this.handler = handler;
    this.sockets = [];
  }

  add(which, socket) {
    this.sockets[which] = socket;
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", ({ data }) => this.tell(MESSAGE, which, data.byteLength ?? 0, data));
    socket.addEventListener("close", ({ code }) => this.tell(CLOSED, which, code));
    socket.addEventListener("error", () => this.tell(CLOSED, which, 1006));
    socket.accept();
  }

  // Replaces the pending timer; below 0: by none.
  wake(delay) {
    clearTimeout(this.timer);
    if (delay >= 0) this.timer = setTimeout(() => this.tell(TIMER, 0, 0), delay);
  }

  tell(kind, which, value, data) {
    try {
      this.awaken();
      this.handler(kind, which, value, data);
    } catch (error) {
      this.close(1001, "restarting");
      throw error;
    }
  }

  close(code, reason) {
    for (const socket of this.sockets) shut(socket, code, reason);
  }
}
