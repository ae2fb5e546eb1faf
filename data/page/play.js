// Two learners as in two_learners.py: each has four texts for each of two prompts; text 0 is right.
const GROUP = 8, RATE = 0.5, IMITATION_WEIGHT = 0.1, WRONG = [1.5, -0.5, -3.5];

function softmax(logits) {
  const top = Math.max(...logits);
  const parts = logits.map((logit) => Math.exp(logit - top));
  const sum = parts.reduce((a, b) => a + b);
  return parts.map((part) => part / sum);
}

// logits of a learner that writes the right text with a chance of `luck`
function firstLogits(luck) {
  const wrong = Math.log(WRONG.reduce((sum, logit) => sum + Math.exp(logit), 0));
  return [Math.log(luck / (1 - luck)) + wrong, ...WRONG];
}

// sharing: "alone", "memory" or "peer"; luck: [learner][prompt]
function newWorld(sharing, luck) {
  return { sharing, logits: luck.map((of) => of.map(firstLogits)), remembers: luck.map((of) => of.map(() => 0)),
    rescues: luck.map((of) => of.map(() => 0)), texts: null, imitated: null, step: 0 };
}

// the text that a uniform number stands for: the first whose cumulative chance lies above it
function draw(chances, uniform) {
  let sum = 0;
  const found = chances.findIndex((chance) => (sum += chance) > uniform);
  return found < 0 ? 3 : found;
}

// one update: the policy gradient of the own texts, and of the right text if it is imitated
function learn(logits, texts, imitate) {
  const chances = softmax(logits);
  const mean = texts.filter((text) => text === 0).length / GROUP;
  const push = [0, 0, 0, 0];
  for (const text of texts) {
    const advantage = (text === 0 ? 1 : 0) - mean;
    push.forEach((_, k) => { push[k] += advantage * ((k === text ? 1 : 0) - chances[k]) / GROUP; });
  }
  if (imitate) push.forEach((_, k) => { push[k] += IMITATION_WEIGHT * ((k === 0 ? 1 : 0) - chances[k]); });
  return logits.map((logit, k) => logit + RATE * push[k]);
}

// one step of both learners; uniforms: [learner][prompt][GROUP]
function stepWorld(world, uniforms) {
  const texts = world.logits.map((of, learner) => of.map((logits, prompt) =>
    uniforms[learner][prompt].map((uniform) => draw(softmax(logits), uniform))));
  world.step += 1;
  world.imitated = world.logits.map((of, learner) => of.map((logits, prompt) => {
    const own = texts[learner][prompt];
    const source = { alone: false, memory: world.remembers[learner][prompt] > 0,
      peer: texts[1 - learner][prompt].includes(0) }[world.sharing];
    const imitate = source && !own.includes(0);
    world.logits[learner][prompt] = learn(logits, own, imitate);
    if (own.includes(0)) world.remembers[learner][prompt] ||= world.step; // the step of the first one
    if (imitate) world.rescues[learner][prompt] += 1;
    return imitate;
  }));
  world.texts = texts;
}

// numbers in [0, 1) from a seed (the generator is called mulberry32)
function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function uniformsOf(random) {
  return [0, 1].map(() => [0, 1].map(() => Array.from({ length: GROUP }, random)));
}
