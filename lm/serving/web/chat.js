// Chat: several turns with streaming, stop, retry and undo, a system prompt, and the conversation as a JSON file.

import { announce, button, clearError, count, element, report, saveFile } from "./dom.js";
import { Latest } from "./api.js";
import { chat } from "./endpoints.js";
import { SamplingOptions } from "./options.js";

const OPTIONS = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "stop", "seed"];

export class ChatView {
  static id = "chat";
  static label = "Chat";
  static supports = (model) => model.chats;

  constructor() {
    this.model = null;
    this.messages = [];
    this.latest = new Latest();
    this.options = new SamplingOptions({ names: OPTIONS });
    this.log = element("ol", { class: "chat-log", "aria-label": "Conversation" });
    this.forgotten = element("p", { class: "notice", role: "status", hidden: true });
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
        this.forgotten,
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
    this.messages.push({ role: "user", content: text });
    await this.#reply();
  }

  stop() {
    this.latest.abort();
  }

  /** Take back the last turn; its message can be edited. */
  undo() {
    if (this.latest.isBusy) return;
    const last = this.messages.findLastIndex(({ role }) => role === "user");
    if (last < 0) return;
    this.input.value = this.messages[last].content;
    this.messages.length = last;
    this.#draw();
    this.input.focus();
  }

  async #reply() {
    clearError();
    const sent = [...this.messages];
    const reply = { role: "assistant", content: "" };
    this.messages.push(reply);
    let isComplete = false;
    try {
      await this.latest.run((signal) => this.#stream(sent, reply, signal));
      isComplete = true;
      announce(`Reply: ${reply.content}`);
    } catch (error) {
      report(error);
    }
    if (!isComplete && reply.content === "") this.messages.pop(); // the message stays, for Retry
    this.#draw();
  }

  /** Write a reply; the oldest turns are left out until the others fit into the context. */
  async #stream(sent, reply, signal) {
    this.#draw();
    const body = this.log.lastElementChild.querySelector(".message-text");
    const turns = sent.filter(({ role }) => role === "user").length;
    for (let left = turns; ;) {
      try {
        const messages = [...this.#systemMessages(), ...sent];
        for await (const { text } of chat({ model: this.model.id, messages, options: this.options.values, signal })) {
          reply.content += text;
          body.append(text);
          this.log.lastElementChild.scrollIntoView({ block: "nearest" });
        }
        break;
      } catch (error) {
        if (error.code !== "context_length_exceeded" || left === 1) throw error;
        sent.splice(
          0,
          sent.findIndex(({ role }, index) => index > 0 && role === "user"),
        );
        left -= 1;
        this.forgotten.hidden = false;
        this.forgotten.textContent = `The context is full: the model no longer sees the first ${count(turns - left, "turn")}.`;
      }
    }
  }

  #systemMessages() {
    const content = this.system.value.trim();
    return content ? [{ role: "system", content }] : [];
  }

  async #retry() {
    if (this.latest.isBusy || !this.messages.length) return;
    if (this.messages.at(-1).role === "assistant") this.messages.pop();
    this.input.focus();
    await this.#reply();
  }

  #save() {
    const messages = [...this.#systemMessages(), ...this.messages];
    saveFile("chat.json", `${JSON.stringify({ messages }, null, 2)}\n`, "application/json");
  }

  #clear() {
    this.stop();
    this.messages = [];
    this.forgotten.hidden = true;
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
