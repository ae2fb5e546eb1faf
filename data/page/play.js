// Two learners as in two_learners.py: each has four completions for each of two prompts.
// Completion 0 is the correct one.
const RATE = 0.5, WRONG = [1.5, -0.5, -3.5];

function softmax(logits) {
  const top = Math.max(...logits);
  const parts = logits.map((logit) => Math.exp(logit - top));
  const sum = parts.reduce((a, b) => a + b);
  return parts.map((part) => part / sum);
}

// the logits of a learner whose completions are correct with a chance of `luck`
function firstLogits(luck) {
  const wrong = Math.log(WRONG.reduce((sum, logit) => sum + Math.exp(logit), 0));
  return [Math.log(luck / (1 - luck)) + wrong, ...WRONG];
}

// sharing: "alone", "replay" or "peer"; luck: [learner][prompt]; weight: of the imitation loss
// liar: a peer without a solution sends a wrong completion, and its receiver does not check it
// found: [learner][prompt], the step of the first solution, which is kept for replay; 0: none yet
function newWorld(sharing, luck, weight = 0.1, liar = false) {
  const zeros = () => luck.map((of) => of.map(() => 0));
  return { sharing, weight, liar, logits: luck.map((of) => of.map(firstLogits)), found: zeros(), imitations: zeros(),
    lastImitation: zeros(), completions: null, imitated: null, step: 0 };
}

// the completion that a uniform number stands for: the first whose cumulative chance exceeds it
function draw(chances, uniform) {
  let sum = 0;
  const drawn = chances.findIndex((chance) => (sum += chance) > uniform);
  return drawn < 0 ? 3 : drawn;
}

// one update: the policy gradient of the learner's own completions, plus the imitation of another one
function learn(logits, completions, imitated, weight) {
  const chances = softmax(logits), size = completions.length;
  const mean = completions.filter((completion) => completion === 0).length / size;
  const push = [0, 0, 0, 0];
  for (const completion of completions) {
    const advantage = (completion === 0 ? 1 : 0) - mean;
    push.forEach((_, k) => { push[k] += advantage * ((k === completion ? 1 : 0) - chances[k]) / size; });
  }
  if (imitated !== null) push.forEach((_, k) => { push[k] += weight * ((k === imitated ? 1 : 0) - chances[k]); });
  return logits.map((logit, k) => logit + RATE * push[k]);
}

// one step of both learners; uniforms: [learner][prompt][group size]
function stepWorld(world, uniforms) {
  const completions = world.logits.map((of, learner) => of.map((logits, prompt) =>
    uniforms[learner][prompt].map((uniform) => draw(softmax(logits), uniform))));
  world.step += 1;
  world.imitated = world.logits.map((of, learner) => of.map((logits, prompt) => {
    const own = completions[learner][prompt], theirs = completions[1 - learner][prompt];
    const sent = { alone: null, replay: world.found[learner][prompt] ? 0 : null,
      peer: theirs.includes(0) ? 0 : world.liar ? theirs[0] : null }[world.sharing];
    const imitated = own.includes(0) ? null : sent;
    world.logits[learner][prompt] = learn(logits, own, imitated, world.weight);
    if (own.includes(0)) world.found[learner][prompt] ||= world.step;
    if (imitated !== null) world.imitations[learner][prompt] += 1;
    if (imitated !== null) world.lastImitation[learner][prompt] = world.step;
    return imitated;
  }));
  world.completions = completions;
}

// numbers in [0, 1) from a seed (this generator is called mulberry32)
function generator(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

function uniformsOf(random, size) {
  return [0, 1].map(() => [0, 1].map(() => Array.from({ length: size }, random)));
}
