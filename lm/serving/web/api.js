// Requests to the server that this page came from: JSON, server-sent events, and the token if the server needs one.

const TOKEN = "token";

/** An error that the server explains in one line. */
export class ServerError extends Error {
  constructor(message, status, code = null) {
    super(message);
    this.code = code; // for programs, such as "context_length_exceeded"
    this.fromServer = true;
    this.status = status;
  }
}

/** Return the JSON that the server answers. With a body, the request is a POST. */
export async function request(path, { body, signal } = {}) {
  const response = await send(path, { body, signal });
  return response.json();
}

/** Yield the JSON of each server-sent event. */
export async function* stream(path, { body, signal }) {
  const response = await send(path, { body: { ...body, stream: true }, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (held + value).split(/\r?\n/);
      held = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(event.error.message, response.status, event.error.code);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the server stops generating
  }
}

async function send(path, { body, signal }) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN);
    const headers = {};
    if (token) headers.Authorization = `Bearer ${token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: body === undefined ? "GET" : "POST",
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The server cannot be reached. Is lm serve still running?", 0);
    }
    if (response.status === 401) {
      await askForToken(token);
      continue;
    }
    if (!response.ok) throw await readError(response);
    return response;
  }
}

async function readError(response) {
  let message = `The server answered ${response.status} ${response.statusText}`.trim();
  let code = null;
  try {
    const { error } = await response.json();
    message = error.message;
    code = error.code;
  } catch {
    // not JSON: the status is all there is
  }
  const wait = response.headers.get("Retry-After");
  if (response.status === 429 && wait) message += ` (try again in ${wait} s)`;
  return new ServerError(message, response.status, code);
}

let asked = null;

/** Ask for a token, once for all requests that wait for it. */
function askForToken(refused) {
  if (sessionStorage.getItem(TOKEN) !== refused) return Promise.resolve();
  asked ??= new Promise((resolve) => {
    const dialog = document.getElementById("token-dialog");
    const field = document.getElementById("token");
    field.value = "";
    document.getElementById("token-help").textContent = refused
      ? "The server doesn't accept this token. Try another one."
      : "This server needs a token. It is kept until you close this tab.";
    dialog.oncancel = (event) => event.preventDefault(); // nothing works without a token
    dialog.onclose = () => {
      sessionStorage.setItem(TOKEN, field.value.trim());
      asked = null;
      resolve();
    };
    dialog.showModal();
  });
  return asked;
}

/** Runs one request at a time: a new one aborts the one before, so that no stale answer is shown. */
export class Latest {
  #controller = null;

  abort() {
    this.#controller?.abort();
  }

  get isBusy() {
    return this.#controller !== null;
  }

  async run(call) {
    this.abort();
    const controller = new AbortController();
    this.#controller = controller;
    try {
      return await call(controller.signal);
    } finally {
      if (this.#controller === controller) this.#controller = null;
    }
  }
}
