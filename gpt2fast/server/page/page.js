// The page: sends the prompt, shows the text as it comes, each token coloured by its surprisal.

const byId = (id) => document.getElementById(id);
const form = byId("form");
const text = byId("text");
const status = byId("status");
const details = byId("details");
const hint = details.innerHTML;

const BITS_PER_COLOUR = 2; // and nine colours, s0 to s8
const ASKED_FOR = 5; // likeliest tokens, the most that the server gives

let model = "";
let tokens = []; // {span, name, logprob, top}
let chosen = -1;
let running = null;

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

function request() {
  const number = (id) => Number(byId(id).value);
  const asked = {
    model: model || undefined,
    prompt: byId("prompt").value,
    max_tokens: number("max_tokens"),
    temperature: number("temperature"),
    top_k: number("top_k"),
    top_p: number("top_p"),
    logprobs: ASKED_FOR,
    echo: true,
    stream: true,
  };
  if (byId("seed").value !== "") asked.seed = number("seed");
  return asked;
}

async function goOn() {
  running?.abort();
  const control = (running = new AbortController());
  const asked = request();
  clear();
  show("…");
  byId("stop").disabled = false;
  const start = performance.now();
  let end = "";
  try {
    const answer = await fetch("v1/completions", {
      method: "POST",
      headers: headers(),
      body: JSON.stringify(asked),
      signal: control.signal,
    });
    if (!answer.ok) {
      if (answer.status === 401) byId("key_field").hidden = false;
      throw new Error((await answer.json()).error.message);
    }
    if (!model) introduce();
    const prompt = Array.from(asked.prompt).length;
    for await (const chunk of events(answer.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const [choice] = chunk.choices;
      add(choice, prompt);
      end = choice.finish_reason ?? end;
      show(summary(prompt, start));
    }
    show(`${summary(prompt, start)}; ended by ${end === "length" ? "its length" : "itself"}`);
  } catch (error) {
    if (error.name === "AbortError") show(`${status.textContent}; stopped`);
    else show(error.message, true);
  } finally {
    if (running === control) {
      running = null;
      byId("stop").disabled = true;
    }
  }
}

// The server-sent events of an answer, up to [DONE].
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the server went away");
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
    tokens.push({ span, parts: pending, bits });
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
  details.innerHTML = hint;
}

function show(message, isError = false) {
  status.textContent = message;
  status.classList.toggle("error", isError);
}

function summary(prompt, start) {
  const fresh = tokens.filter(({ span }) => !span.classList.contains("prompt"));
  const seconds = (performance.now() - start) / 1000;
  const bits = fresh.reduce((sum, token) => sum + token.bits, 0) / Math.max(fresh.length, 1);
  const count = fresh.reduce((sum, token) => sum + token.parts.length, 0);
  return `${count} new tokens in ${seconds.toFixed(1)} s; ${bits.toFixed(2)} bits a token`;
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
    row.insertCell().append(code(token));
    row.insertCell().textContent = percent(Math.exp(logprob));
  }
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
  goOn();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("key").addEventListener("change", introduce);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
text.addEventListener("pointerover", (event) => {
  if (event.target.dataset.index) choose(Number(event.target.dataset.index));
});
text.addEventListener("click", (event) => {
  if (event.target.dataset.index) choose(Number(event.target.dataset.index));
});
text.addEventListener("keydown", (event) => {
  const moves = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, Home: 0, End: tokens.length - 1 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  choose(moves[event.key]);
  tokens[chosen]?.span.scrollIntoView({ block: "nearest" });
});

introduce().catch((error) => show(error.message, true));
