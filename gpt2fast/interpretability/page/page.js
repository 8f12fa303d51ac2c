// The page of a look inside: its data is in the page, or comes from the server for a text that is typed in.
// Texts become nodes by textContent only, so nothing in them is ever HTML.

const byId = (id) => document.getElementById(id);
const TYPES = { uint8: Uint8Array, int16: Int16Array, uint32: Uint32Array, float32: Float32Array };
const MOST_BITS = 16; // a surprisal from which on its line grows no longer
const MOST_SHARE = 3; // a share of a logit from which on its colour grows no deeper, unless others are larger

let data = null; // as look_page.py makes it, with typed arrays
let T, L, H;
let layer, head; // whose attention is shown
let target; // the token that is explained
let kept; // the token whose attention is shown while the pointer is elsewhere
let query; // the token whose attention is shown
let cell = null; // [layer, position] of the lens that the keyboard is at

async function unpack({ type, data: packed }) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new TYPES[type](await new Response(stream).arrayBuffer());
}

async function show(found) {
  const names = Object.keys(found).filter((name) => found[name]?.type);
  const arrays = await Promise.all(names.map((name) => unpack(found[name])));
  data = { ...found, ...Object.fromEntries(names.map((name, i) => [name, arrays[i]])) };
  T = data.tokens.length;
  [L, H] = data.heads;
  byId("summary").textContent = data.summary;
  byId("look").hidden = false;
  makeText();
  makeHeads();
  makeLens();
  layer = head = 0;
  if (T > 1) [layer, head] = byShare(T - 1)[0].head;
  choose(T - 1, false);
}

// What the arrays hold

const attention = (l, h, q, k) =>
  k > q ? 0 : data.patterns[((l * H + h) * T * (T + 1)) / 2 + (q * (q + 1)) / 2 + k] / data.steps;
const headShare = (l, h, token) => data.headShare[(l * H + h) * (T - 1) + token - 1] / 100;
const mlpShare = (l, token) => data.mlpShare[l * (T - 1) + token - 1] / 100;
const otherShare = (kind, token) => data.otherShare[kind * (T - 1) + token - 1] / 100;

function sum(count, value) {
  let total = 0;
  for (let i = 0; i < count; i++) total += value(i);
  return total;
}

// All heads with their shares of a token's logit, the largest first.
function byShare(token) {
  const found = [];
  for (let l = 0; l < L; l++)
    for (let h = 0; h < H; h++) found.push({ head: [l, h], share: headShare(l, h, token) });
  return found.sort((one, other) => other.share - one.share);
}

// The tokens that a head looks at from one, those with most attention first.
function lookedAt(l, h, from, count) {
  return Array.from({ length: from + 1 }, (_, k) => [k, attention(l, h, from, k)])
    .sort((one, other) => other[1] - one[1])
    .slice(0, count)
    .filter(([, share]) => share > 0);
}

const quoted = (token) => `“${data.tokens[token].name}”`;
const headName = (l, h) => `L${l}H${h}`;
const signed = (number) => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(2);

function percent(share) {
  if (share > 0 && share < 0.0001) return "under 0.01 %";
  return `${(100 * share).toFixed(share < 0.1 ? 2 : 0)} %`;
}

function make(name, properties = {}, ...children) {
  const { style = {}, attributes = {}, ...others } = properties;
  const made = Object.assign(document.createElement(name), others);
  for (const [key, value] of Object.entries(style)) made.style.setProperty(key, value);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// The parts of the page, made once for a text

function makeText() {
  byId("text").replaceChildren(
    ...data.tokens.map(({ shown, name }, i) => {
      const isLine = /^\r?\n$/.test(shown);
      const token = make("span", {
        textContent: shown,
        className: isLine ? "t line" : "t",
        id: `t${i}`,
        attributes: { role: "option", "aria-label": name, "aria-selected": "false" },
        style: { "--bits": Math.min(data.surprisal[i] / MOST_BITS, 1).toFixed(3) },
      });
      token.dataset.index = i;
      if (!shown.length) token.textContent = "∅";
      if (i === 0 && data.ranks[0] === 0 && /^<\|.*\|>$/.test(shown)) token.classList.add("special");
      if (shown === "·" && name !== "·") token.classList.add("part");
      return token;
    }),
  );
}

function makeHeads() {
  const grid = byId("heads");
  grid.style.setProperty("grid-template-columns", `auto repeat(${H}, auto)`);
  const row = (...cells) => make("div", { attributes: { role: "row" } }, ...cells);
  const titles = Array.from({ length: H }, (_, h) =>
    make("div", { textContent: h, attributes: { role: "columnheader", "aria-label": `head ${h}` } }),
  );
  const corner = make("div", { textContent: "head", attributes: { role: "columnheader" } });
  const rows = Array.from({ length: L }, (_, l) =>
    row(
      make("div", { textContent: `L${l}`, attributes: { role: "rowheader" } }),
      ...Array.from({ length: H }, (_, h) => {
        const made = make("div", { attributes: { role: "gridcell", tabindex: "-1" } });
        Object.assign(made.dataset, { layer: l, head: h });
        return made;
      }),
    ),
  );
  grid.replaceChildren(row(corner, ...titles), ...rows);
}

function makeLens() {
  cell = null;
  const titles = data.tokens.map(({ name }, i) => {
    const made = make("th", { textContent: name, title: name, scope: "col" });
    made.dataset.position = i;
    return made;
  });
  const head = make("thead", {}, make("tr", {}, make("th", { textContent: "after", scope: "col" }), ...titles));
  const K = data.lens.length / ((L + 1) * T);
  const body = make("tbody");
  for (let l = 0; l <= L; l++) {
    const row = make("tr", {}, make("th", { textContent: l ? `L${l - 1}` : "embeddings", scope: "row" }));
    for (let t = 0; t < T; t++) {
      const at = (l * T + t) * K;
      const made = make("td", {
        textContent: data.names[data.lens[at]],
        style: { "--s": data.lensProbability[at].toFixed(3) },
      });
      made.classList.toggle("right", t + 1 < T && data.names[data.lens[at]] === data.tokens[t + 1].name);
      Object.assign(made.dataset, { layer: l, position: t });
      row.append(made);
    }
    body.append(row);
  }
  byId("lens").replaceChildren(head, body);
}

// What changes

function choose(token, told = true) {
  if (!data || token < 0 || token >= T) return;
  target = kept = token;
  explain();
  look(token);
  if (told) tell(numbers(token));
}

// Show the attention from a token, or to it.
function look(token) {
  query = token;
  const backwards = document.querySelector("[name=direction]:checked").value === "to";
  for (const [i, shown] of [...byId("text").children].entries()) {
    const share = backwards ? attention(layer, head, i, token) : attention(layer, head, token, i);
    shown.style.setProperty("--s", share ? Math.sqrt(share).toFixed(3) : 0);
    shown.classList.toggle("query", i === token);
    shown.classList.toggle("target", i === target);
    shown.setAttribute("aria-selected", i === token);
  }
  byId("text").setAttribute("aria-activedescendant", `t${token}`);
  for (const name of document.querySelectorAll(".head_name")) name.textContent = headName(layer, head);
  drawMatrix();
}

function drawMatrix() {
  const canvas = byId("matrix");
  canvas.width = canvas.height = T;
  canvas.setAttribute("aria-label", `All attention of head ${headName(layer, head)}: from rows to columns`);
  const context = canvas.getContext("2d");
  const image = context.createImageData(T, T);
  const style = getComputedStyle(document.documentElement);
  const [r, g, b] = style.getPropertyValue("--cool").trim().split(/\s+/).map(Number);
  for (let q = 0; q < T; q++)
    for (let k = 0; k < T; k++) {
      const alpha = k > q ? (q === query ? 0.06 : 0) : Math.max(Math.sqrt(attention(layer, head, q, k)), q === query ? 0.12 : 0);
      image.data.set([r, g, b, 255 * alpha], 4 * (q * T + k));
    }
  context.putImageData(image, 0, 0);
}

function explain() {
  const why = byId("why");
  const grid = byId("heads");
  if (target === 0) {
    why.textContent = `${quoted(0)} comes after nothing: it has no probability to explain.`;
    byId("shares").replaceChildren();
    for (const made of grid.querySelectorAll("[role=gridcell]")) {
      made.style.setProperty("--s", 0);
      made.setAttribute("aria-label", headName(made.dataset.layer, made.dataset.head));
    }
    markHead();
    return;
  }
  const ranked = byShare(target);
  const heads = sum(ranked.length, (i) => ranked[i].share);
  const mlps = sum(L, (l) => mlpShare(l, target));
  const total = heads + mlps + otherShare(0, target) + otherShare(1, target) + otherShare(2, target);
  why.textContent =
    `${quoted(target)} was predicted at ${quoted(target - 1)}: probability ${percent(probability(target))}, its logit ` +
    `${signed(total)} beside the vocabulary’s mean.`;
  const most = Math.max(MOST_SHARE, Math.abs(ranked[0].share), Math.abs(ranked.at(-1).share));
  for (const made of grid.querySelectorAll("[role=gridcell]")) {
    const [l, h] = [Number(made.dataset.layer), Number(made.dataset.head)];
    const share = headShare(l, h, target);
    made.style.setProperty("--s", Math.min(Math.abs(share) / most, 1).toFixed(3));
    made.style.setProperty("--tint", share < 0 ? "var(--down)" : "var(--up)");
    made.title = `${headName(l, h)}: ${signed(share)}`;
    made.setAttribute("aria-label", made.title);
  }
  const part = (name, share) =>
    make("tr", {}, make("th", { textContent: name, scope: "row", colSpan: 2 }), make("td", { textContent: signed(share), className: "number" }));
  const few = ranked.length > 8 ? [...ranked.slice(0, 5), ...ranked.slice(-3)] : ranked;
  const rows = few.map(({ head: [l, h], share }) => {
    const button = make("button", { type: "button", textContent: headName(l, h) });
    Object.assign(button.dataset, { layer: l, head: h });
    const seen = lookedAt(l, h, target - 1, 1).map(([k, much]) => `${quoted(k)} ${percent(much)}`);
    return make(
      "tr",
      {},
      make("td", {}, button),
      make("td", { textContent: seen.join() }),
      make("td", { textContent: signed(share), className: "number" }),
    );
  });
  const title = (text) => make("th", { textContent: text, scope: "col" });
  byId("shares").replaceChildren(
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, title("head"), title("looks most at"), title("adds"))),
      make("tbody", {}, ...rows),
      make(
        "tfoot",
        {},
        part(`all ${L * H} heads`, heads),
        part(`all ${L} MLPs`, mlps),
        part("token embedding", otherShare(0, target)),
        part("position", otherShare(1, target)),
        part("biases", otherShare(2, target)),
      ),
    ),
  );
  markHead();
  for (const marked of byId("lens").querySelectorAll(".column")) marked.classList.remove("column");
  const column = byId("lens").querySelector(`th[data-position="${target - 1}"]`);
  column.classList.add("column");
  const scroll = byId("lens_scroll");
  const [left, right] = [column.offsetLeft, column.offsetLeft + column.offsetWidth];
  const names = byId("lens").querySelector("th").offsetWidth; // which stay while the rest is scrolled
  if (left - names < scroll.scrollLeft || right > scroll.scrollLeft + scroll.clientWidth)
    scroll.scrollLeft = left - (scroll.clientWidth + names) / 2;
}

const probability = (token) => Math.pow(2, -data.surprisal[token]);

function chooseHead(l, h) {
  [layer, head] = [l, h];
  if (target > 0) kept = target - 1; // where the token was predicted
  markHead();
  look(kept);
  if (target > 0) tell(`At ${quoted(kept)} ${headName(l, h)} adds ${signed(headShare(l, h, target))} to ${quoted(target)}\n${seenFrom(kept)}`);
}

function markHead() {
  for (const made of byId("heads").querySelectorAll("[role=gridcell]")) {
    const chosen = Number(made.dataset.layer) === layer && Number(made.dataset.head) === head;
    made.setAttribute("aria-selected", chosen);
    made.tabIndex = chosen ? 0 : -1;
  }
}

// The bar at the foot of the window

function tell(text) {
  byId("numbers").textContent = text;
  byId("numbers").hidden = false;
}

function seenFrom(token) {
  const seen = lookedAt(layer, head, token, 3).map(([k, share]) => `${quoted(k)} ${percent(share)}`);
  return `${headName(layer, head)} looks from there at ${seen.join(", ")}`;
}

function numbers(token) {
  const { id } = data.tokens[token];
  const known = data.ranks[token]
    ? `surprisal ${data.surprisal[token].toFixed(2)} bits, probability ${percent(probability(token))}, rank ${data.ranks[token]}`
    : "comes after nothing";
  return `${quoted(token)} id ${id}: ${known}\n${seenFrom(token)}`;
}

function tellLens(l, t) {
  const K = data.lens.length / ((L + 1) * T);
  const at = (l * T + t) * K;
  const likely = Array.from({ length: K }, (_, i) => `“${data.names[data.lens[at + i]]}” ${percent(data.lensProbability[at + i])}`);
  const place = l ? `After layer ${l - 1}` : "From the embeddings alone";
  const next = t + 1 < T ? `\nWhat comes, ${quoted(t + 1)}: ${percent(Math.exp(data.lensNext[l * (T - 1) + t]))}` : "";
  tell(`${place}, behind ${quoted(t)}: ${likely.join(", ")}${next}`);
}

// Pointer and keyboard

const indexOf = (event) => {
  const token = event.target.closest?.("[data-index]");
  return token ? Number(token.dataset.index) : -1;
};

byId("text").addEventListener("pointerover", (event) => {
  if (event.pointerType !== "mouse" || indexOf(event) < 0) return;
  look(indexOf(event));
  tell(numbers(query));
});
byId("text").addEventListener("pointerleave", (event) => {
  if (event.pointerType !== "mouse" || !data) return;
  look(kept);
  byId("numbers").hidden = true;
});
byId("text").addEventListener("click", (event) => choose(indexOf(event)));
byId("text").addEventListener("focus", () => data && tell(numbers(query)));
byId("text").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: query + 1, ArrowDown: query + 1, ArrowLeft: query - 1, ArrowUp: query - 1, Home: 0, End: T - 1 };
  if (!(event.key in moves)) return;
  event.preventDefault();
  choose(Math.max(0, Math.min(moves[event.key], T - 1)));
  byId(`t${query}`).scrollIntoView({ block: "nearest" });
});

for (const choice of document.querySelectorAll("[name=direction]")) choice.addEventListener("change", () => look(kept));

for (const place of [byId("heads"), byId("shares")])
  place.addEventListener("click", (event) => {
    const made = event.target.closest("[data-head]");
    if (made) chooseHead(Number(made.dataset.layer), Number(made.dataset.head));
  });
byId("heads").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  if (!(event.key in moves)) return;
  event.preventDefault();
  const [down, right] = moves[event.key];
  const within = (number, count) => Math.max(0, Math.min(number, count - 1));
  chooseHead(within(layer + down, L), within(head + right, H));
  byId("heads").querySelector("[aria-selected=true]").focus();
});

byId("matrix").addEventListener("click", (event) => choose(Math.floor((event.offsetY / event.target.clientHeight) * T)));

const markCell = (made) => {
  byId("lens").querySelector(".at")?.classList.remove("at");
  made?.classList.add("at");
};
const lensCell = (event) => event.target.closest("td");
byId("lens").addEventListener("pointerover", (event) => {
  const made = lensCell(event);
  if (made && event.pointerType === "mouse") tellLens(Number(made.dataset.layer), Number(made.dataset.position));
});
byId("lens").addEventListener("pointerleave", (event) => {
  if (event.pointerType === "mouse") byId("numbers").hidden = true;
});
byId("lens").addEventListener("click", (event) => {
  const made = lensCell(event);
  if (!made) return;
  const position = Number(made.dataset.position);
  cell = [Number(made.dataset.layer), position];
  markCell(made);
  choose(Math.min(position + 1, T - 1), false);
  tellLens(...cell);
});
byId("lens_scroll").addEventListener("keydown", (event) => {
  const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
  if (!(event.key in moves) || !data) return;
  event.preventDefault();
  const [l, t] = cell ?? [L, Math.max(target - 1, 0)];
  const [down, right] = cell ? moves[event.key] : [0, 0];
  cell = [Math.max(0, Math.min(l + down, L)), Math.max(0, Math.min(t + right, T - 1))];
  const made = byId("lens").querySelector(`td[data-layer="${cell[0]}"][data-position="${cell[1]}"]`);
  markCell(made);
  made.scrollIntoView({ block: "nearest", inline: "nearest" });
  tellLens(...cell);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") byId("numbers").hidden = true;
});
document.addEventListener("pointerdown", (event) => {
  if (!event.target.closest("#text, #heads, #shares, #lens, #matrix, #numbers")) byId("numbers").hidden = true;
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => data && drawMatrix());

// With a server: the text is behind the address's #, which browsers do not send.

async function ask(text) {
  const status = byId("status");
  status.className = "";
  status.textContent = "Looking…";
  try {
    const key = byId("key").value;
    const answer = await fetch("look/data", {
      method: "POST",
      headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
      body: JSON.stringify({ text }),
    });
    if (answer.status === 401) byId("key_field").hidden = false;
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error.message);
    await show(found);
    status.textContent = "";
  } catch (error) {
    status.textContent = error instanceof TypeError ? "The server cannot be reached." : error.message;
    status.className = "error";
  }
}

function serve() {
  const form = byId("ask");
  form.hidden = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    history.replaceState(null, "", `#${encodeURIComponent(byId("asked").value)}`);
    ask(byId("asked").value);
  });
  byId("asked").value = decodeURIComponent(location.hash.slice(1));
  if (byId("asked").value) ask(byId("asked").value);
}

const embedded = byId("data");
if (!("DecompressionStream" in window)) {
  byId("status").textContent = "This browser is too old for the page; one of 2023 or later shows it.";
  byId("status").className = "error";
} else if (embedded) show(JSON.parse(embedded.textContent));
else serve();
