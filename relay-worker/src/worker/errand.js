// The requests of one push, in JavaScript, so that a timer and a socket end by themselves when the wasm instance is rebuilt
// after a panic: the Rust side only says what comes next.

const BEGIN = 0;
const ANSWER = 1;
const SIGNATURE = 2;
const NO_CONNECTION = 3;
const TOO_LATE = 4;

// An answer is an error's name or an access token.
const MAX_BODY = 16384;

// next(kind, status, retryAfter, bytes) gives what to do: { url, headers, body } to fetch, { key, input } to sign, or
// nothing. It is not called before the caller's turn has ended. All of it together may take `delay` milliseconds.
export async function errand(awaken, next, delay) {
  await null;
  const abort = new AbortController();
  let late = false;
  const timer = setTimeout(() => {
    late = true;
    abort.abort();
  }, delay);
  const ask = (...news) => {
    awaken();
    return next(...news);
  };
  try {
    let step = ask(BEGIN, 0, undefined, undefined);
    while (step) {
      if (step.key) step = ask(SIGNATURE, 0, undefined, await signature(step));
      else {
        const [kind, status, retryAfter, body] = await answer(step, abort.signal);
        step = ask(kind === NO_CONNECTION && late ? TOO_LATE : kind, status, retryAfter, body);
      }
    }
  } catch (error) {
    // This wasm instance is gone, and the push with it; the namespace tries again. A panic is to be heard of by whatever
    // rebuilds the instance, which a promise's rejection would not be.
    reportError(error);
  } finally {
    clearTimeout(timer);
  }
}

async function answer({ url, headers, body }, signal) {
  try {
    const response = await fetch(url, { method: "POST", redirect: "manual", headers, body, signal });
    const retryAfter = response.headers.get("retry-after") ?? undefined;
    return [ANSWER, response.status, retryAfter, await beginning(response.body)];
  } catch {
    return [NO_CONNECTION, 0, undefined, undefined];
  }
}

async function beginning(stream) {
  const bytes = new Uint8Array(MAX_BODY);
  let length = 0;
  if (stream) {
    const reader = stream.getReader();
    while (length < MAX_BODY) {
      const { done, value } = await reader.read();
      if (done) break;
      const part = value.subarray(0, MAX_BODY - length);
      bytes.set(part, length);
      length += part.length;
    }
    reader.cancel().catch(() => {});
  }
  return bytes.subarray(0, length);
}

// RS256; nothing if the key is none.
async function signature({ key, input }) {
  try {
    const algorithm = { name: "RSASSA-PKCS1-v1_5", hash: "SHA-256" };
    const imported = await crypto.subtle.importKey("pkcs8", key, algorithm, false, ["sign"]);
    return new Uint8Array(await crypto.subtle.sign(algorithm, imported, new TextEncoder().encode(input)));
  } catch {
    return undefined;
  }
}

// Hands a report to an object; whatever becomes of it, nobody waits.
export async function report(awaken, object, body, failed) {
  try {
    const response = await object.fetch("https://object/", { method: "POST", body });
    if (response.ok) return;
  } catch {}
  try {
    awaken();
    failed();
  } catch {}
}

// What an object says within `delay` milliseconds; nothing if it does not.
export async function ask(object, delay) {
  let timer;
  const late = new Promise((done) => (timer = setTimeout(done, delay)));
  try {
    const text = async () => {
      const response = await object.fetch("https://object/");
      return response.ok ? response.text() : undefined;
    };
    return await Promise.race([text(), late]);
  } catch {
    return undefined;
  } finally {
    clearTimeout(timer);
  }
}
