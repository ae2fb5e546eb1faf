// What the playable run shows. All three positions of the switch run beside each other, with the same luck.
const at = (id) => document.getElementById(id);
const STEPS = {{steps}}, KNOWS = 0.9, NAMES = ["Blue", "Orange"], SHARING = ["alone", "memory", "peer"];
const PROMPTS = [
  { asks: "Gus picks 5 figs a day for 3 days. How many?", texts: ["5*3=15", "5+3=8", "5-3=2", "5*3=18"] },
  { asks: "Ann has 6 nuts and eats 2. How many?", texts: ["6-2=4", "6+2=8", "6*2=12", "6-2=3"] },
];
const PRESETS = { // weak: the prompt that each learner misreads
  rare: { luck: -2, weak: [0, 1], says: "Both are right once in a hundred texts where they misread. That is rare, " +
    "but luck comes within some dozen steps, so each can get out alone." },
  hole: { luck: -5, weak: [0, 1], says: "Both are right once in 100,000 texts where they misread. Each knows what " +
    "the other lacks." },
  same: { luck: -5, weak: [0, 0], says: "Both misread the first prompt, so neither has anything to give there." },
};
let worlds, curves, random, preset = PRESETS.hole, timer = null;

function add(parent, tag, name = "", text = "") {
  const element = parent.appendChild(document.createElement(tag));
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

const cells = [[], []]; // [learner][prompt]
const gaps = PROMPTS.map((prompt, row) => {
  add(at("world"), "p", "asks", prompt.asks);
  let gap;
  for (const learner of [0, 1]) {
    const cell = add(at("world"), "div", "learner of" + learner);
    add(cell, "b", "name", NAMES[learner]);
    const bars = prompt.texts.map((text, index) => {
      const bar = add(cell, "div", index ? "bar" : "bar right");
      const fill = add(bar, "i");
      add(bar, "code", "", text);
      return { fill, percent: add(bar, "span") };
    });
    cells[learner][row] = { bars, tries: add(cell, "div", "tries"), note: add(cell, "p", "memory") };
    if (learner === 0) gap = add(at("world"), "div", "gap");
  }
  return gap;
});

function sharing() {
  return document.querySelector("input[name=sharing]:checked").value;
}

function reset() {
  pause();
  const luck = 10 ** at("luck").value;
  const chances = [0, 1].map((learner) => [0, 1].map((prompt) => (prompt === preset.weak[learner] ? luck : KNOWS)));
  worlds = Object.fromEntries(SHARING.map((name) => [name, newWorld(name, chances)]));
  curves = Object.fromEntries(SHARING.map((name) => [name, []]));
  random = generator(1);
  record();
  show();
}

// how often a learner is right on the prompt that it misreads
function chanceOf(world, learner) {
  return softmax(world.logits[learner][preset.weak[learner]])[0];
}

function record() {
  for (const name of SHARING) curves[name].push((chanceOf(worlds[name], 0) + chanceOf(worlds[name], 1)) / 2);
}

function step() {
  if (worlds.alone.step >= STEPS) return pause();
  const uniforms = uniformsOf(random);
  for (const name of SHARING) stepWorld(worlds[name], uniforms);
  record();
  show();
}

function pause() {
  clearInterval(timer);
  timer = null;
  at("go").textContent = "Play";
}

function play() {
  if (timer) return pause();
  if (worlds.alone.step >= STEPS) reset();
  timer = setInterval(step, 50);
  at("go").textContent = "Pause";
}

function odds(chance) {
  return chance > 0.095 ? `${Math.round(100 * chance)} times in 100` : `once in ${Math.round(1 / chance).toLocaleString("en")}`;
}

// what became of one learner, in a sentence that begins with the finding
function story(world, learner) {
  const [name, peer, prompt] = [NAMES[learner], NAMES[1 - learner], preset.weak[learner]];
  const first = world.remembers[learner][prompt], now = odds(chanceOf(world, learner));
  const rescues = world.rescues[learner][prompt];
  if (rescues && world.sharing === "peer")
    return `${name} was rescued ${rescues} times by ${peer} and is now right ${now}.`;
  if (rescues) return `${name} remembers its right text of step ${first}, has imitated it ${rescues} times, and is now right ${now}.`;
  if (first) return `${name} had a right text in step ${first}, so its groups began to teach. It is now right ${now}.`;
  const stuck = `${name} is stuck: none of its ${GROUP * world.step} texts was right, so nothing has pushed it`;
  if (world.sharing === "memory") return `${stuck}. Its memory is empty until the first right text.`;
  return stuck + (world.sharing === "peer" ? `, and ${peer} had no right text to give.` : ".");
}

function show() {
  const world = worlds[sharing()];
  cells.forEach((of, learner) => of.forEach(({ bars, tries, note }, prompt) => {
    softmax(world.logits[learner][prompt]).forEach((chance, text) => {
      bars[text].fill.style.width = `${100 * chance}%`;
      bars[text].percent.textContent = `${(100 * chance).toFixed(chance < 0.01 ? 2 : 0)} %`;
    });
    const texts = world.texts ? world.texts[learner][prompt] : [];
    tries.replaceChildren();
    for (const text of texts) add(tries, "i", text === 0 ? "hit" : "miss");
    add(tries, "span", "", texts.length ? `${texts.filter((text) => text === 0).length} of ${GROUP} right` : "no text yet");
    const first = world.remembers[learner][prompt];
    note.textContent = first ? `memory: ${PROMPTS[prompt].texts[0]}, since step ${first}` : "memory: empty";
    note.hidden = world.sharing !== "memory";
    note.classList.toggle("used", Boolean(world.imitated?.[learner][prompt]));
  }));
  gaps.forEach((gap, prompt) => {
    gap.replaceChildren();
    for (const learner of [0, 1]) if (world.sharing === "peer" && world.imitated?.[learner][prompt])
      add(gap, "span", `arrow to${learner}`, learner ? "→" : "←").title = `${NAMES[learner]} imitates ${NAMES[1 - learner]}`;
  });
  at("step").textContent = world.step;
  at("luck-value").textContent = odds(10 ** at("luck").value);
  at("story").textContent = world.step ? [0, 1].map((learner) => story(world, learner)).join(" ") : preset.says + " Press Play.";
  for (const name of SHARING) {
    const points = curves[name].map((chance, x) => `${30 + x * 280 / STEPS},${110 - 100 * chance}`);
    at("curve-" + name).setAttribute("points", points.join(" "));
    at("curve-" + name).classList.toggle("chosen", name === world.sharing);
  }
}

function choose(name) {
  preset = PRESETS[name];
  at("luck").value = preset.luck;
  for (const button of at("presets").children) button.setAttribute("aria-pressed", button.value === name);
  reset();
}

for (const button of at("presets").children) button.onclick = () => choose(button.value);
for (const radio of document.getElementsByName("sharing")) radio.onchange = show;
at("luck").oninput = reset;
at("go").onclick = play;
at("one").onclick = () => { pause(); step(); };
at("reset").onclick = reset;
choose("hole");
