// How many texts are visible, and which have less contrast than 4.5:1 with the ground they stand on.
(() => {
  const parse = (text) => (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
      if (colour[3] > 0) throw new Error('a ground that is half transparent');
    }
    return [255, 255, 255];
  };
  const found = new Map();
  let count = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.checkVisibility({visibilityProperty: true}) || element.closest('script')) continue;
    const style = getComputedStyle(element);
    const svg = element.ownerSVGElement;
    const on = svg && element.closest('.mark-text.role-mark') ? [47, 106, 168] : ground(svg ? svg.parentElement : element);
    const [a, b] = [light(parse(svg ? style.fill : style.color)), light(on)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    count += 1;
    if (ratio < 4.5) found.set(node.data.trim().slice(0, 40), ratio);
  }
  return [count, [...found]];
})()
