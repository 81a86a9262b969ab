"use strict";
// From the numbers that the graph computes to an answer, as vitkit gives it. `page` is the description in the page.

function probabilitiesOf(logits, loss) {
  if (loss === "sigmoid") return Array.from(logits, logit => 1 / (1 + Math.exp(-logit)));
  const largest = logits.reduce((most, logit) => Math.max(most, logit), -Infinity);
  const powers = Array.from(logits, logit => Math.exp(logit - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map(power => power / sum);
}

// Give the numbers of the classes, the most probable first, and the lower number first of two that are equal.
const rank = logits => Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);

// Give the fraction of the model's own images that are at least as strange, the image itself among them.
function typicalityOf(score, {scores, tie}) {
  const own = Math.fround(Math.fround(score) - Math.fround(tie));
  const stranger = scores.filter(each => each >= own).length;
  return (1 + stranger) / (1 + scores.length);
}

// Name the group of the deepest level of a tree of classes that the model is sure of; null where there is none.
function surestGroup(logits, levels) {
  const classes = probabilitiesOf(logits, "softmax");
  let sure = null, upper = 0;
  for (const [depth, {names, groups, above, threshold}] of levels.entries()) {
    const shares = new Array(names.length).fill(0);
    classes.forEach((share, number) => { shares[groups[number]] += share; });
    const likeliest = shares.indexOf(Math.max(...shares));
    if (threshold === null || above[likeliest] !== upper || !(shares[likeliest] > threshold)) break;
    sure = {name: names[likeliest], probability: shares[likeliest], level: depth + 1};
    upper = likeliest;
  }
  return sure;
}

// Give the answer to an image: all classes, best first, whether it is none of them, what the model is sure of.
function answer(logits, novelty, page) {
  const probabilities = probabilitiesOf(logits, page.several ? "sigmoid" : page.loss);
  const guesses = rank(logits).map(number => ({name: page.classes[number], probability: probabilities[number]}));
  const typicality = page.refusal ? typicalityOf(novelty, page.refusal) : null;
  const refused = typicality !== null && typicality <= page.refusal.share;
  const sure = page.levels && !refused ? surestGroup(logits, page.levels) : null;
  return {guesses, typicality, refused, sure};
}

// Say whether an answer is the exported one, but for logits that are so near that rounding may exchange them.
function sameAnswer(logits, refused, expected, page) {
  const {tie} = page.golden, own = expected.logits;
  if (page.refusal && refused !== expected.refused) return false;
  if (page.several) return own.every((logit, number) => Math.abs(logit) <= tie || logit >= 0 === logits[number] >= 0);
  return own[rank(own)[0]] - own[rank(logits)[0]] <= tie;
}
