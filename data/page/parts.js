// Sections 2 to 4 of the page; `at` and `add` are defined in play_view.js.
const facts = JSON.parse(at("facts").textContent);
const percent = (share) => (100 * share).toFixed(1) + "%";
const number = (value) => (Math.abs(value) < 0.005 ? "0.00" : value.toFixed(2));
const rewards = [0, 0, 1, 0, 0, 0, 1, 0];

const answers = rewards.map((_, index) => {
  const cell = add(at("answers"), "div");
  const button = add(cell, "button");
  button.type = "button";
  button.style.width = "100%";
  button.onclick = () => { rewards[index] = 1 - rewards[index]; showGroup(); };
  const push = add(cell, "div", "push");
  const [above, below] = ["above", "below"].map((side) => add(add(push, "div", "half " + side), "div"));
  return { button, above, below, words: add(push, "div") };
});

function showGroup() {
  const values = advantages(rewards, at("scaled").checked);
  answers.forEach(({ button, above, below, words }, index) => {
    const value = values[index], verdict = rewards[index] ? "correct" : "wrong";
    button.textContent = (rewards[index] ? "✓ " : "✗ ") + verdict;
    button.setAttribute("aria-pressed", rewards[index] === 1);
    button.setAttribute("aria-label", `completion ${index + 1}: ${verdict}`);
    const tall = Math.min(60, Math.abs(value) * 22) + "px";
    above.style.height = value > 0 ? tall : 0;
    below.style.height = value < 0 ? tall : 0;
    below.style.visibility = value < 0 ? "" : "hidden";
    words.textContent = (value > 0 ? "+" : "") + number(value);
  });

  const correct = rewards.filter((reward) => reward === 1).length;
  const figures = `The mean reward is ${number(correct / 8)}, and the loss is ${number(loss(values))}. `;
  if (correct === 0) {
    at("group").textContent = "There is no push, because all rewards agree. " + figures + "This is an all-fail group: the " +
      "model cannot learn from itself here. In the mode sgt, it imitates a solution of its peer instead.";
  } else if (correct === 8) {
    at("group").textContent = "There is no push, because all rewards agree. " + figures + "The model can do this already.";
  } else {
    at("group").textContent = (correct === 1 ? "The correct completion is pushed up by "
      : `Each of the ${correct} correct completions is pushed up by `) + `${number(Math.max(...values))}, and each wrong one ` +
      `is pushed down by ${number(-Math.min(...values))}. ${figures}The loss is 0 because the pushes of a group add up to 0.`;
  }
}

function showAllFail() {
  const p = at("p").value / 100;
  const G = Number(at("G").value);
  const chance = allFailChance(p, G);
  for (const [name, words] of [["p", percent(p)], ["G", G]]) {
    at(name + "-value").textContent = words;
    at(name).setAttribute("aria-valuetext", words);
  }
  at("all-fail").textContent = p === 0
    ? "Every group fails, however large it is. Only a solution from elsewhere can help."
    : `The first solution comes after ${(1 / (1 - chance)).toFixed(1)} groups on average, because ${percent(chance)} of the ` +
      "groups have none.";
}

// one verdict in words: is there a push, does it point uphill, how much of it is noise
function verdict(name, [support, angle, groups], ofSolo) {
  const often = support === "100%" ? "learns from every group" : `learns from ${support} of its groups`;
  if (parseFloat(angle) > 90)
    return `${name} ${often}, but its mean push points ${angle} away from the true gradient, which is downhill: it makes the model worse.`;
  if (name === "solo") return `${name} only ${often}, and needs ${groups} groups until its push stands out from the noise.`;
  if (parseFloat(groups) > parseFloat(ofSolo))
    return `${name} ${often}, but needs ${groups} groups where solo needs ${ofSolo}. Its push points uphill, but is small compared with its noise.`;
  return `${name} ${often}, and ${parseFloat(groups) <= 1 ? "one group is enough" : `needs ${groups} groups`} where solo needs ${ofSolo}. ` +
    `Its push points ${angle} away from the true gradient.`;
}

const ofSolo = facts.modes.find(([name]) => name === "solo").at(-1);
const modes = [...facts.modes, ["replay"]].map(([name, ...figures]) => {
  const button = add(at("modes"), "button", "", name);
  button.type = "button";
  button.onclick = () => showMode(name);
  return { name, button, figures };
});

function showMode(chosen) {
  for (const { name, button, figures } of modes) {
    button.setAttribute("aria-pressed", name === chosen);
    document.querySelector(`tr[data-mode=${name}]`).className = name === chosen ? "chosen" : "";
    if (name === chosen) at("mode").textContent = figures.length ? verdict(name, figures, ofSolo) : facts.replay;
  }
  for (const point of document.querySelectorAll("#support [data-modes]"))
    point.setAttribute("class", point.dataset.modes.split(" ").includes(chosen) ? "lit" : "");
}

at("none").onclick = () => { rewards.fill(0); showGroup(); };
at("all").onclick = () => { rewards.fill(1); showGroup(); };
at("scaled").onchange = showGroup;
at("p").oninput = showAllFail;
at("G").oninput = showAllFail;
at("luck-of-bandit").textContent = percent(facts.p);
at("bandit-size").textContent = facts.G;
showGroup();
showAllFail();
showMode("sgt");
