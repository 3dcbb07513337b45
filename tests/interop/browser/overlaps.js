// How many texts the charts and the head of the page have, and which pairs of them overlap.
(() => {
  const seen = [];
  const clip = (rect, box) => ({left: Math.max(rect.left, box.left), right: Math.min(rect.right, box.right),
                                top: Math.max(rect.top, box.top), bottom: Math.min(rect.bottom, box.bottom)});
  const add = (rect, text, frame) => {
    if (rect.right - rect.left > 1 && rect.bottom - rect.top > 1) seen.push({rect, text, frame});
  };
  for (const text of document.querySelectorAll('#charts svg text')) {
    if (!text.textContent.trim() || getComputedStyle(text).opacity === '0' || text.getAttribute('opacity') === '0') continue;
    const frame = text.closest('.chart');
    add(clip(text.getBoundingClientRect(), frame.getBoundingClientRect()), text.textContent, frame.id);
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim() || !node.parentElement.closest('.top, .opening, #facts, .toolbar, figcaption, #filter')) continue;
    if (node.parentElement.closest('select, option')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) add(rect, node.data, '');
  }
  const found = [];
  seen.forEach((one, at) => seen.slice(at + 1).forEach((other) => {
    const wide = Math.min(one.rect.right, other.rect.right) - Math.max(one.rect.left, other.rect.left);
    const high = Math.min(one.rect.bottom, other.rect.bottom) - Math.max(one.rect.top, other.rect.top);
    if (wide > 1 && high > 2.5) found.push([one.text, other.text]);
  }));
  return [seen.length, found];
})()
