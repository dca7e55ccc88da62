// What the server's endpoints take and answer, as the views use it.

import { request, ServerError, stream } from "./api.js";

/** Return the models: their name and what they can do. */
export async function listModels() {
  const { data } = await request("v1/models");
  return data.map((model) => ({
    id: model.id,
    completes: model.has_completions,
    scores: model.has_completions,
    attends: model.has_attention,
    translates: model.purpose === "translates",
    chats: model.has_chat_template,
    languages: model.languages,
  }));
}

/** Return sampling options as fields of a request. */
function toFields({ logit_bias: biases, ...options }) {
  return biases ? { ...options, logit_bias: Object.fromEntries(biases.map(parseBias)) } : options;
}

const BANNED = -1e30; // the lowest bias: JSON has no infinity

function parseBias(line) {
  const [, token, value] = line.match(/^(.+)=([^=]+)$/s) ?? [];
  const bias = value?.trim() === "-inf" ? BANNED : Number(value);
  if (!Number.isFinite(bias)) throw new ServerError(`Logit bias: write TOKEN=NUMBER, not ${line}`);
  return [token, bias];
}

/** Yield the pieces of completions as `{index, text, finishReason}`, and at the end `{tokens}`. */
export async function* complete({ model, prompt, n, options, signal }) {
  const body = { model, prompt, n, stream_options: { include_usage: true }, ...toFields(options) };
  for await (const { choices, usage } of stream("v1/completions", { body, signal })) {
    for (const choice of choices) yield { index: choice.index, text: choice.text, finishReason: choice.finish_reason };
    if (usage) yield { tokens: usage.completion_tokens };
  }
}

/** Yield the pieces of a reply, each with the number of turns that the model was not shown, as its context is full. */
export async function* chat({ model, messages, options, signal }) {
  const body = { model, messages, ...toFields(options) };
  for await (const { choices, dropped_turns: dropped } of stream("v1/chat/completions", { body, signal })) {
    for (const { delta } of choices) yield { text: delta?.content ?? "", dropped };
  }
}

/** Return the most likely next tokens, with their probability before and after the filters. */
export async function nextTokens({ model, prompt, options, signal, top }) {
  const found = await request("next", { body: { model, prompt, top, ...toFields(options) }, signal });
  return {
    tokens: found.tokens.map(({ id, text, probability, filtered }) => ({
      id,
      text,
      before: probability,
      after: filtered,
    })),
    kept: found.kept,
    size: found.vocab_size,
  };
}

/** Return the tokens of a text with their surprisal; `start` and `end` are offsets in the JavaScript string. */
export async function score({ model, text, signal, top }) {
  const found = await request("score", { body: { model, text, top }, signal });
  const place = byteOffsets(text);
  return {
    tokens: found.tokens.map(({ offset, bytes, ...token }) => {
      const [start, end] = [place(offset), place(offset + bytes)];
      return { ...token, bits: token.nats && token.nats / Math.LN2, start, end, shown: text.slice(start, end) };
    }),
    totals: {
      tokens: found.count,
      bytes: found.bytes,
      nats: found.nats,
      bits: found.nats / Math.LN2,
      bitsPerByte: found.bits_per_byte,
      perplexity: found.perplexity,
    },
  };
}

/** Return a function that turns an offset in the UTF-8 bytes of a text into one of the string, after a split character. */
export function byteOffsets(text) {
  const places = [0]; // of the string, by byte
  let at = 0;
  for (const character of text) {
    const code = character.codePointAt(0);
    at += character.length;
    for (let bytes = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4; bytes; bytes -= 1) places.push(at);
  }
  return (byte) => places[Math.min(byte, places.length - 1)];
}

/** Return attention weights [layer][head][query][key] with the texts of queries and keys. */
export async function attention({ model, text, to, signal }) {
  const { queries, keys, weights } = await request("attention", { body: { model, text, to }, signal });
  return { queries: queries.map((token) => token.text), keys: keys.map((token) => token.text), weights };
}

/** Return sentences: their hypotheses, best first, with words and links [source word, target word] where there are any. */
export async function translate({ model, text, number, beam, to, signal }) {
  const body = { model, text, n_best: number, beam, to, alignments: true };
  const { results } = await request("translate", { body, signal });
  return results.map(({ translations }) => ({
    hypotheses: translations.map(({ text: translated, score: points, alignment }) => ({
      text: translated,
      score: points,
      alignment: alignment && { source: alignment.source, target: alignment.target, links: alignment.pairs },
    })),
  }));
}
