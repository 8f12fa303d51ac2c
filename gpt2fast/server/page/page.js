// The page: sends the prompt, shows the text as it comes, each token coloured by its surprisal.
// To continue, the whole text is sent as the prompt, and shown anew once its first part is back.

const byId = (id) => document.getElementById(id);
const form = byId("form");
const text = byId("text");
const status = byId("status");
const details = byId("details");
const hint = details.innerHTML;

const BITS_PER_COLOUR = 2; // and nine colours, s0 to s8
const ASKED_FOR = 5; // likeliest tokens, the most that the server gives

let model = "";
let tokens = []; // {span, parts, bits, start}, where start counts characters
let chosen = -1;
let running = null;
let written = 0; // characters of the text that were in the prompt

function headers() {
  const key = byId("key").value;
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function introduce() {
  const answer = await fetch("v1/models", { headers: headers() });
  if (answer.status === 401) {
    byId("key_field").hidden = false;
    byId("model").textContent = "asks for a key";
    return;
  }
  const [card] = (await answer.json()).data;
  model = card.id;
  byId("model").textContent = `${card.id}, context of ${card.context_length} tokens`;
  byId("max_tokens").max = card.context_length;
}

function request(prompt, count) {
  const number = (id) => Number(byId(id).value);
  const asked = {
    model: model || undefined,
    prompt,
    max_tokens: count,
    temperature: number("temperature"),
    top_k: number("top_k"),
    top_p: number("top_p"),
    logprobs: ASKED_FOR,
    echo: true,
    stream: true,
  };
  if (byId("seed").value !== "") asked.seed = number("seed");
  const stops = byId("stops").value.split("\n").filter(Boolean);
  if (stops.length) asked.stop = stops.map((stop) => stop.replaceAll("\\n", "\n"));
  return asked;
}

// A prompt that is sent whole, and of which the first `italic` characters are shown as such; with `count` new tokens.
async function run(prompt, italic, count) {
  if (!form.reportValidity()) return;
  running?.abort();
  const control = (running = new AbortController());
  show(count ? "Writing…" : "Scoring…");
  byId("stop").disabled = false;
  const start = performance.now();
  let end = "";
  let begun = false;
  const begin = () => {
    begun = true;
    clear();
    written = italic;
  };
  try {
    const answer = await fetch("v1/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(request(prompt, count)),
      signal: control.signal,
    });
    if (!answer.ok) {
      if (answer.status === 401) byId("key_field").hidden = false;
      throw new Error(await reason(answer));
    }
    if (!model) introduce();
    const sent = Array.from(prompt).length;
    for await (const chunk of events(answer.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      if (!begun) begin();
      const [choice] = chunk.choices;
      add(choice, italic);
      end = choice.finish_reason ?? end;
      show(summary(sent, start));
    }
    if (!begun) begin();
    show(count ? `${summary(sent, start)}; ended by ${end === "length" ? "its length" : "itself"}` : scored());
  } catch (error) {
    if (error.name === "AbortError") show(`${begun ? status.textContent : "Nothing new"}; stopped`);
    else show(error instanceof TypeError ? "The server cannot be reached: is it still running?" : error.message, true);
  } finally {
    byId("continue").disabled = byId("copy").disabled = !tokens.length;
    if (running === control) {
      running = null;
      byId("stop").disabled = true;
    }
  }
}

// Why an answer is none, in words.
async function reason(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `The server answered with an error (status ${answer.status}).`;
  }
}

const count = () => Number(byId("max_tokens").value);
const whole = () => tokens.map(({ span }) => span.textContent).join("");
const write = () => run(byId("prompt").value, Array.from(byId("prompt").value).length, count());
const goOn = () => run(whole(), written, count());
const score = () => run(byId("prompt").value, Array.from(byId("prompt").value).length, 0);

// Go on with another token in the place of the chosen one.
function take(name) {
  const before = tokens.slice(0, chosen).map(({ span }) => span.textContent).join("");
  run(before + name, Math.min(written, Array.from(before).length), count());
}

// The server-sent events of an answer, up to [DONE].
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The server went away in the middle of the text.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.slice("data: ".length);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

// Add a chunk's text, cut into tokens by their offsets, which count characters and not JavaScript's UTF-16 units.
function add({ text: piece, logprobs }, prompt) {
  const characters = Array.from(piece);
  const shown = add.shown;
  const offsets = logprobs.text_offset;
  let pending = [];
  offsets.forEach((offset, i) => {
    const start = Math.max(offset - shown, 0);
    const end = i + 1 < offsets.length ? offsets[i + 1] - shown : characters.length;
    pending.push({
      name: logprobs.tokens[i],
      logprob: logprobs.token_logprobs[i],
      top: logprobs.top_logprobs[i],
    });
    // A token that ends within a character is shown with those that complete it.
    const part = characters.slice(start, end).join("");
    if (!part) return;
    const bits = pending.reduce((sum, token) => sum - (token.logprob ?? 0) / Math.LN2, 0);
    const span = document.createElement("span");
    span.textContent = part;
    span.className = `t s${Math.max(0, Math.min(8, Math.round(bits / BITS_PER_COLOUR)))}`;
    span.classList.toggle("prompt", offset < prompt);
    span.dataset.bits = bits.toFixed(2);
    span.dataset.index = tokens.length;
    text.append(span);
    tokens.push({ span, parts: pending, bits, start: offset });
    pending = [];
  });
  add.shown += characters.length;
  tokens.counted = (tokens.counted ?? 0) + offsets.length;
}
add.shown = 0;

function clear() {
  text.textContent = "";
  tokens = [];
  chosen = -1;
  add.shown = 0;
  close();
}

function close() {
  tokens[chosen]?.span.classList.remove("chosen");
  chosen = -1;
  details.innerHTML = hint;
  details.classList.remove("open");
}

function show(message, isError = false) {
  status.textContent = message;
  status.classList.toggle("error", isError);
}

function summary(sent, start) {
  const fresh = tokens.filter((token) => token.start >= sent);
  const seconds = (performance.now() - start) / 1000;
  const bits = fresh.reduce((sum, token) => sum + token.bits, 0) / Math.max(fresh.length, 1);
  const number = fresh.reduce((sum, token) => sum + token.parts.length, 0);
  return `${number} new tokens in ${seconds.toFixed(1)} s; ${bits.toFixed(2)} bits a token`;
}

// The sum of what a text that is only scored has; its first token comes after nothing and does not count.
function scored() {
  const parts = tokens.flatMap((token) => token.parts).slice(1);
  if (!parts.length) return "One token, which comes after nothing: there is nothing to score";
  const bits = parts.reduce((sum, part) => sum - part.logprob / Math.LN2, 0) / parts.length;
  return `${parts.length + 1} tokens; ${bits.toFixed(2)} bits a token; perplexity ${(2 ** bits).toFixed(2)}`;
}

// What is known of a token.
function choose(index) {
  if (!tokens[index] || index === chosen) return;
  tokens[chosen]?.span.classList.remove("chosen");
  chosen = index;
  const { span, parts, bits } = tokens[index];
  span.classList.add("chosen");
  const line = document.createElement("p");
  line.append("Token ", code(parts.map((part) => part.name).join("")), known(parts, bits));
  details.replaceChildren(line);
  details.classList.add("open");
  const top = parts.at(-1).top;
  if (top) details.append(table(Object.entries(top), parts.at(-1).name));
}

function known(parts, bits) {
  if (parts[0].logprob === null) return ": the first one, which comes after nothing";
  const probability = parts.reduce((product, part) => product * Math.exp(part.logprob), 1);
  return `: ${bits.toFixed(2)} bits of surprisal, probability ${percent(probability)}`;
}

function table(entries, name) {
  const made = document.createElement("table");
  const head = made.createTHead().insertRow();
  for (const title of ["Likeliest here", "Probability"]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = title;
    head.append(cell);
  }
  const body = made.createTBody();
  entries.sort((one, other) => other[1] - one[1]);
  for (const [token, logprob] of entries) {
    const row = body.insertRow();
    row.classList.toggle("this", token === name);
    row.insertCell().append(alternative(token));
    row.insertCell().textContent = percent(Math.exp(logprob));
  }
  return made;
}

// A likely token: a button that goes on with it, unless it is no text by itself.
function alternative(token) {
  if (/^(bytes:|<\|)/.test(token) || token.includes("\ufffd")) return code(token);
  const made = document.createElement("button");
  made.type = "button";
  made.append(code(token));
  made.setAttribute("aria-label", `Go on with “${token}”`);
  made.addEventListener("click", () => take(token));
  return made;
}

function code(token) {
  const made = document.createElement("code");
  made.textContent = token.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return made;
}

const percent = (share) => (share < 0.0001 ? "under 0.01 %" : `${(100 * share).toFixed(2)} %`);

form.addEventListener("submit", (event) => {
  event.preventDefault();
  write();
});
byId("continue").addEventListener("click", goOn);
byId("score").addEventListener("click", score);
byId("stop").addEventListener("click", () => running?.abort());
byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(whole());
    show("Copied");
  } catch {
    getSelection().selectAllChildren(text);
    show("The browser does not let the page copy; the text is selected for you to do it");
  }
});
byId("look")?.addEventListener("click", (event) => {
  event.currentTarget.href = `look#${encodeURIComponent(whole() || byId("prompt").value)}`;
});
byId("key").addEventListener("change", introduce);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (running) running.abort();
    else close();
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
text.addEventListener("pointerover", (event) => {
  if (event.pointerType === "mouse" && event.target.dataset.index) choose(Number(event.target.dataset.index));
});
document.addEventListener("click", (event) => {
  if (event.target.dataset?.index) choose(Number(event.target.dataset.index));
  else if (!event.target.closest("#details, button")) close();
});
text.addEventListener("keydown", (event) => {
  const moves = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: tokens.length - 1 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  choose(moves[event.key]);
  tokens[chosen]?.span.scrollIntoView({ block: "nearest" });
});

introduce().catch(() => show("The server cannot be reached.", true));
