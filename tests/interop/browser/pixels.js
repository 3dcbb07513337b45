// Of a picture: colours, the part of the most frequent one, different and all strips of 50 pixels, and their sums.
const [image, done] = [new Image(), arguments[1]];
image.onload = () => {
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const data = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of data) counts.set(pixel, (counts.get(pixel) || 0) + 1);
  const rows = [];
  for (let y = 0; y + 50 <= image.height; y += 50) {
    let sum = 0;
    for (const pixel of data.subarray(y * image.width, (y + 50) * image.width)) sum = (sum * 31 + pixel) >>> 0;
    rows.push(sum);
  }
  done([counts.size, Math.max(...counts.values()) / data.length, new Set(rows).size, rows.length, rows]);
};
image.src = 'data:image/png;base64,' + arguments[0];
