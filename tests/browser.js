// What a test asks of any page: the text with the lowest contrast, as WCAG 2 defines it.
function channels(text) {
  const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number);
  return [r, g, b, a];
}

function over(top, below) {
  return [0, 1, 2].map((k) => top[k] * top[3] + below[k] * (1 - top[3]));
}

function lightness(color) {
  const [r, g, b] = color.map((channel) => {
    const share = channel / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function behind(element) {
  if (element.closest("#support")) return [255, 255, 255]; // a drawing's white card
  const layers = [];
  for (let place = element; place; place = place.parentElement)
    layers.push(channels(getComputedStyle(place).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
}

function contrasts() {
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const words = [...element.childNodes].filter((node) => node.nodeType === 3 && node.data.trim());
    if (!words.length || !element.checkVisibility()) continue;
    if (element.disabled || element.closest("script, style")) continue;
    const style = getComputedStyle(element), plain = behind(element), grounds = [plain];
    const fill = element.closest(".tile, .bar")?.querySelector("i"); // it may lie behind the words
    if (fill) grounds.push(over(channels(getComputedStyle(fill).backgroundColor), plain));
    const ink = channels(element.closest("svg") ? style.fill : style.color);
    for (const ground of grounds) {
      const [a, b] = [lightness(over(ink, ground)), lightness(ground)];
      found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), words[0].data.trim()]);
    }
  }
  return found.sort((a, b) => a[0] - b[0])[0];
}
