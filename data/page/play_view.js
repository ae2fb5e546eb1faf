// What the playable run shows. Each way to learn has its own run, from the same start with the same luck.
const at = (id) => document.getElementById(id);
const STEPS = {{steps}}, KNOWS = 0.9, BLIND_SPOT = {{blind_spot}}, CLOSED = {{closed}}, NAMES = ["Blue", "Orange"];
const WAYS = { alone: "RL alone", replay: "with replay", peer: "with a peer" };
const STRIDE = { alone: 3, replay: 3, peer: 1 }; // steps per tick: nothing happens for long while they are stuck
const STAYS = 6; // steps for which an arrow stays while the run plays, so that the eye can follow it
const PROMPTS = [
  { asks: "Gus picks 5 figs a day for 3 days. How many?", completions: ["5*3=15", "5+3=8", "5-3=2", "5*3=18"] },
  { asks: "Ann has 6 nuts and eats 2. How many?", completions: ["6-2=4", "6+2=8", "6*2=12", "6-2=3"] },
];
const PRESETS = { // weak: the prompt that each learner misreads
  weak_skill: { luck: -1.5, weak: [0, 1], says: (odds) => `Each misreads one prompt, but is correct there ${odds}. ` },
  blind_spot: { luck: -5, weak: [0, 1], says: (odds) => "Blue misreads the first prompt and Orange the second: there, " +
    `they are correct ${odds}. ` },
  same: { luck: -5, weak: [0, 0], says: () => "Both misread the first prompt, so neither has a solution to send. " },
};
const QUESTIONS = { alone: "Can they learn alone?", replay: "Does it help to keep old solutions?", peer: "Does it help to talk?" };
const SLIDERS = ["luck", "size", "weight"];
const SOLVED = 0.97; // the run ends when both are correct this often, because nothing more happens then
const LEFT = 76, WIDTH = 230; // of the curves
const LEAST = -6; // the curve's axis begins at 10 ** LEAST, so that progress shows from the first step on
let runs = {}, preset = PRESETS.blind_spot, timer = null, seed = 1;

function add(parent, tag, name = "", text = "") {
  const element = parent.appendChild(document.createElement(tag));
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

const cells = [[], []]; // [learner][prompt]
const arrows = [[], []]; // [learner][prompt]; they stay in the page, so that their animation goes on
PROMPTS.forEach((prompt, row) => {
  add(at("world"), "p", "asks", prompt.asks);
  let gap;
  for (const learner of [0, 1]) {
    const cell = add(at("world"), "div", "learner of" + learner);
    const head = add(cell, "p", "head");
    add(head, "b", "name", NAMES[learner]);
    const count = add(head, "span");
    const tries = add(cell, "div", "tries");
    const bars = prompt.completions.map((completion, index) => {
      const bar = add(cell, "div", index ? "bar" : "bar correct");
      const fill = add(bar, "i");
      add(bar, "code", "", (index ? "" : "✓ ") + completion);
      return { fill, percent: add(bar, "span") };
    });
    cells[learner][row] = { bars, tries, count, note: add(cell, "p", "replay-buffer") };
    if (learner === 0) gap = add(at("world"), "div", "gap");
  }
  for (const learner of [0, 1]) {
    arrows[learner][row] = add(gap, "i", learner ? "arrow" : "arrow to-left");
    arrows[learner][row].title = `${NAMES[learner]} imitates ${NAMES[1 - learner]}'s solution`;
  }
});

function sharing() {
  return document.querySelector("input[name=sharing]:checked").value;
}

function groupSize() {
  return Number(at("size").value);
}

// begin the run of one way to learn
function begin(way) {
  const luck = 10 ** at("luck").value, weight = 10 ** at("weight").value;
  const chances = [0, 1].map((learner) => [0, 1].map((prompt) => (prompt === preset.weak[learner] ? luck : KNOWS)));
  runs[way] = { world: newWorld(way, chances, weight, at("liar").checked), random: generator(seed), curve: [] };
  record(runs[way]);
}

function reset() {
  pause();
  Object.keys(WAYS).forEach(begin);
  show();
}

// how often a learner is correct on the prompt that it misreads
function chanceOf(world, learner) {
  return softmax(world.logits[learner][preset.weak[learner]])[0];
}

function record({ world, curve }) {
  curve.push((chanceOf(world, 0) + chanceOf(world, 1)) / 2);
}

// whether nothing more happens in a run
function isOver({ world }) {
  return world.step >= STEPS || [0, 1].every((learner) => chanceOf(world, learner) >= SOLVED);
}

function advance() {
  const run = runs[sharing()];
  if (!isOver(run)) {
    stepWorld(run.world, uniformsOf(run.random, groupSize()));
    record(run);
  }
  if (isOver(run)) pause();
}

function step() {
  advance();
  show();
}

function tick() {
  for (let n = 0; n < STRIDE[sharing()]; n++) advance();
  show();
}

function pause() {
  clearInterval(timer);
  timer = null;
}

function play() {
  if (isOver(runs[sharing()])) begin(sharing());
  timer ??= setInterval(tick, 50);
  show();
}

function letThemTalk() {
  document.querySelector("input[value=peer]").checked = true;
  at("go").focus(); // because this button is hidden now
  play();
}

function odds(chance) {
  return chance > 0.095 ? `in ${Math.round(100 * chance)} of 100 completions`
    : `once in ${Math.round(1 / chance).toLocaleString("en")} completions`;
}

const times = (count) => (count === 1 ? "once" : `${count} times`);

// what became of one learner on the prompt that it misreads
function outcome(world, learner) {
  const prompt = preset.weak[learner];
  const [found, imitations] = [world.found[learner][prompt], world.imitations[learner][prompt]];
  const kind = imitations ? (world.sharing === "peer" ? "rescued" : "replayed") : found ? "lucky" : "stuck";
  return { kind, found, imitations, written: groupSize() * world.step, chance: chanceOf(world, learner) };
}

function sentence(world, learner) {
  const [name, peer] = [NAMES[learner], NAMES[1 - learner]];
  const { kind, found, imitations, written, chance } = outcome(world, learner);
  return {
    rescued: `${name} imitated ${world.liar ? "what " + peer + " claimed to be a solution" : peer + "'s solution"} ` +
      `${times(imitations)}, and is now correct ${odds(chance)}.`,
    replayed: `${name} found a solution in step ${found}, replayed it ${times(imitations)}, and is now correct ${odds(chance)}.`,
    lucky: `${name} found a solution by itself in step ${found}, and is now correct ${odds(chance)}.`,
    stuck: `${name} is stuck: none of its ${written.toLocaleString("en")} completions was correct` +
      (world.sharing === "peer" ? `, and ${peer} had no solution to send.` : "."),
  }[kind];
}

// what became of both, in sentences that begin with the finding
function story(world) {
  const [blue, orange] = [0, 1].map((learner) => outcome(world, learner));
  if (blue.kind !== "stuck" || orange.kind !== "stuck") {
    const closed = 10 ** at("luck").value < BLIND_SPOT && blue.chance >= CLOSED && orange.chance >= CLOSED;
    return (closed ? "Both blind spots are closed. " : "") + [0, 1].map((learner) => sentence(world, learner)).join(" ");
  }
  const both = `Both are stuck: none of the ${blue.written.toLocaleString("en")} completions that each wrote to the prompt ` +
    "it misreads was correct";
  return both + { alone: ", so RL had nothing to strengthen.", peer: ", so neither had a solution to send.",
    replay: ", so their replay buffers are empty." }[world.sharing];
}

function showCell({ bars, tries, count, note }, world, learner, prompt) {
  softmax(world.logits[learner][prompt]).forEach((chance, completion) => {
    bars[completion].fill.style.width = `${100 * chance}%`;
    bars[completion].percent.textContent = `${(100 * chance).toFixed(chance < 0.01 ? 2 : 0)}%`;
  });
  const completions = world.completions?.[learner][prompt] ?? [];
  const correct = completions.filter((completion) => completion === 0).length;
  tries.replaceChildren();
  tries.style.gridTemplateColumns = `repeat(${groupSize()}, 1fr)`;
  for (let n = 0; n < groupSize(); n++) add(tries, "i", n in completions ? (completions[n] === 0 ? "hit" : "miss") : "");
  count.textContent = completions.length ? `${correct} of ${groupSize()} correct` : "";
  const found = world.found[learner][prompt];
  note.textContent = found ? `replay buffer: ${PROMPTS[prompt].completions[0]}` : "replay buffer: empty";
  note.hidden = world.sharing !== "replay";
  note.classList.toggle("used", (world.imitated?.[learner][prompt] ?? null) !== null);
  const last = world.lastImitation[learner][prompt], stays = timer ? STAYS : 1;
  arrows[learner][prompt].classList.toggle("on", world.sharing === "peer" && last > 0 && world.step - last < stays);
}

// the height of a chance on the curve's axis, which is logarithmic
function heightOf(chance) {
  return 114 - 100 * Math.max(0, 1 - Math.log10(chance) / LEAST);
}

// each curve has its name at its end; names that would overlap are moved up
function showCurves() {
  let free = Infinity;
  const played = Object.entries(runs).map(([way, { curve }]) => ({ way, curve, x: LEFT + (curve.length - 1) * WIDTH / STEPS,
    y: heightOf(curve.at(-1)) })).sort((a, b) => b.y - a.y);
  for (const { way, curve, x, y } of played) {
    const points = curve.map((chance, n) => `${LEFT + n * WIDTH / STEPS},${heightOf(chance)}`);
    at("curve-" + way).setAttribute("points", points.join(" "));
    at("curve-" + way).classList.toggle("chosen", way === sharing());
    const name = at("name-" + way);
    name.textContent = curve.length > 1 ? WAYS[way] : "";
    if (curve.length === 1) continue;
    free = Math.min(y, free - 15);
    name.setAttribute("x", x + 5);
    name.setAttribute("y", free + 4);
  }
}

function show() {
  const { world } = runs[sharing()];
  cells.forEach((of, learner) => of.forEach((cell, prompt) => showCell(cell, world, learner, prompt)));
  at("go").textContent = timer ? "Pause" : isOver(runs[sharing()]) ? "Play again" : "Play";
  at("talk").hidden = sharing() === "peer";
  at("step").textContent = world.step;
  const chance = odds(10 ** at("luck").value);
  for (const [name, words] of Object.entries({ luck: chance, size: groupSize(), weight: (10 ** at("weight").value).toFixed(2) })) {
    at(name + "-value").textContent = words;
    at(name).setAttribute("aria-valuetext", words);
  }
  // a screen reader hears the story when it has ended, and not at each step
  at("story").setAttribute("aria-live", timer ? "off" : "polite");
  at("story").textContent = world.step ? story(world) : preset.says(chance) + QUESTIONS[sharing()];
  at("link").href = "#" + new URLSearchParams({ way: sharing(), preset: presetName(), seed, liar: Number(at("liar").checked),
    ...Object.fromEntries(SLIDERS.map((name) => [name, at(name).value])) });
  for (const button of at("presets").children) {
    const pressed = button.value === presetName() && Number(at("luck").value) === preset.luck;
    button.setAttribute("aria-pressed", pressed);
  }
  showCurves();
}

function presetName() {
  return Object.keys(PRESETS).find((name) => PRESETS[name] === preset);
}

function choose(name) {
  preset = PRESETS[name];
  at("luck").value = preset.luck;
  reset();
}

for (const button of at("presets").children) button.onclick = () => choose(button.value);
for (const radio of document.getElementsByName("sharing")) radio.onchange = show;
for (const name of [...SLIDERS, "liar"]) at(name).oninput = reset;
at("go").onclick = () => { if (!timer) return play(); pause(); show(); };
at("talk").onclick = letThemTalk;
at("one").onclick = () => { pause(); step(); };
at("reset").onclick = () => { seed += 1; reset(); };

// a link to a state, as `show` writes it
function restore() {
  const state = new URLSearchParams(location.hash.slice(1));
  preset = PRESETS[state.get("preset")] ?? PRESETS.blind_spot;
  seed = Number(state.get("seed")) || 1;
  at("luck").value = preset.luck;
  for (const name of SLIDERS) if (state.has(name)) at(name).value = state.get(name);
  at("liar").checked = state.get("liar") === "1";
  for (const radio of document.getElementsByName("sharing")) radio.checked = radio.value === (state.get("way") ?? "alone");
  if (!document.querySelector("input[name=sharing]:checked")) document.querySelector("input[value=alone]").checked = true;
  reset();
}
window.onhashchange = restore;
restore();
