// Chat: several turns with streaming, stop, retry and undo, a system prompt, and the conversation as a JSON file.

import { announce, button, clearError, element, report, saveFile } from "./dom.js";
import { Latest, ServerError } from "./api.js";
import { chat } from "./endpoints.js";
import { SamplingOptions } from "./options.js";

const OPTIONS = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "stop", "seed"];

export class ChatView {
  static id = "chat";
  static label = "Chat";
  static supports = (model) => model.chats;

  constructor() {
    this.model = null;
    this.messages = []; // of the user and the model in turn
    this.dropped = 0; // turns that the model no longer sees
    this.latest = new Latest();
    this.options = new SamplingOptions({ names: OPTIONS });
    this.log = element("ol", { class: "chat-log", "aria-label": "Conversation" });
    this.notice = element("p", { class: "notice", role: "status", hidden: true });
    this.system = element("textarea", { id: "chat-system", rows: 2, class: "plain-text", placeholder: "none" });
    this.input = element("textarea", {
      id: "chat-input",
      rows: 2,
      class: "plain-text",
      "aria-describedby": "chat-help",
      placeholder: "Message",
      onkeydown: (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.ctrlKey || event.isComposing) return;
        event.preventDefault();
        this.run();
      },
    });
    this.sendButton = button("Send", () => this.run(), { class: "primary", keys: "Ctrl+Enter" });
    this.stopButton = button("Stop", () => this.stop(), { keys: "Escape" });
    this.retryButton = button("Retry", () => this.#retry());
    this.undoButton = button("Undo", () => this.undo());
    this.saveButton = button("Save as JSON", () => this.#save());
    this.clearButton = button("New chat", () => this.#clear());
    this.root = element(
      "div",
      { class: "view columns" },
      element(
        "div",
        { class: "column-main chat" },
        this.notice,
        this.log,
        element("label", { class: "visually-hidden", for: "chat-input" }, "Message"),
        this.input,
        element("p", { id: "chat-help", class: "muted small" }, "Enter sends, Shift+Enter begins a new line."),
        element(
          "div",
          { class: "toolbar", role: "group", "aria-label": "Conversation" },
          this.sendButton,
          this.stopButton,
          this.retryButton,
          this.undoButton,
          this.saveButton,
          this.clearButton,
        ),
      ),
      element(
        "div",
        { class: "column-side" },
        element(
          "section",
          { class: "panel" },
          element("label", { class: "field", for: "chat-system" }, "System prompt"),
          this.system,
        ),
        this.options.root,
      ),
    );
    this.#draw();
  }

  show(model) {
    if (model !== this.model) this.#setDropped(0);
    this.model = model;
  }

  hide() {
    this.stop();
  }

  focus() {
    this.input.focus();
  }

  async run() {
    const text = this.input.value.trim();
    if (text === "" || this.latest.isBusy) return;
    this.input.value = "";
    await this.#reply(text);
  }

  stop() {
    this.latest.abort();
  }

  /** Take back the last turn; its message can be edited. */
  undo() {
    if (this.latest.isBusy || !this.messages.length) return;
    clearError();
    this.#takeBack();
    this.#draw();
    this.input.focus();
  }

  /** Remove the last turn; its message goes back to where it was written, unless another is being written there. */
  #takeBack() {
    const [message] = this.messages.splice(-2);
    this.#setDropped(0);
    this.input.value ||= message.content;
  }

  async #reply(message) {
    clearError();
    const reply = { role: "assistant", content: "" };
    this.messages.push({ role: "user", content: message }, reply);
    try {
      await this.latest.run((signal) => this.#stream(reply, signal));
      if (reply.content.trim() === "") throw new ServerError("The reply is empty.");
      announce(`Reply: ${reply.content}`);
    } catch (error) {
      report(error);
    }
    if (reply.content.trim() === "") this.#takeBack();
    this.#draw();
  }

  /** Write a reply; the oldest turns are left out once the context is full. */
  async #stream(reply, signal) {
    this.#draw();
    const body = this.log.lastElementChild.querySelector(".message-text");
    const before = this.dropped;
    const messages = [...this.#systemMessages(), ...this.messages.slice(2 * before, -1)];
    const request = { model: this.model.id, messages, options: this.options.values, signal };
    for await (const { text: piece, dropped } of chat(request)) {
      const text = reply.content ? piece : piece.trimStart();
      this.#setDropped(before + dropped);
      reply.content += text;
      body.append(text);
      this.log.lastElementChild.scrollIntoView({ block: "nearest" });
    }
  }

  #setDropped(turns) {
    if (turns === this.dropped) return;
    this.dropped = turns;
    this.notice.hidden = turns === 0;
    const which = turns === 1 ? "oldest turn" : `oldest ${turns} turns`;
    this.notice.textContent = `The context is full: the model no longer sees the ${which}.`;
  }

  #systemMessages() {
    const content = this.system.value.trim();
    return content ? [{ role: "system", content }] : [];
  }

  async #retry() {
    if (this.latest.isBusy || !this.messages.length) return;
    const [message] = this.messages.splice(-2);
    this.input.focus();
    await this.#reply(message.content);
  }

  #save() {
    const messages = [...this.#systemMessages(), ...this.messages];
    saveFile("chat.json", `${JSON.stringify({ messages }, null, 2)}\n`, "application/json");
  }

  #clear() {
    clearError();
    this.messages = [];
    this.#setDropped(0);
    this.#draw();
    this.input.focus();
  }

  #draw() {
    const names = { user: "You", assistant: "Model" };
    this.log.replaceChildren(
      ...this.messages.map(({ role, content }) =>
        element(
          "li",
          { class: `message message-${role}` },
          element("p", { class: "message-role" }, names[role]),
          element("div", { class: "message-text" }, content),
        ),
      ),
    );
    const isBusy = this.latest.isBusy;
    if (isBusy && document.activeElement === this.sendButton) this.input.focus();
    this.sendButton.disabled = isBusy;
    this.stopButton.disabled = !isBusy;
    for (const each of [this.retryButton, this.undoButton, this.saveButton, this.clearButton]) {
      each.disabled = isBusy || !this.messages.length;
    }
    this.log.lastElementChild?.scrollIntoView({ block: "nearest" });
  }
}
