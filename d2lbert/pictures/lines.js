// Lines between two columns of tokens

const MOST_LINES = 6000;

// Until somebody says otherwise, as many lines as are still to be told apart:
// the place of the slider
function suitedFloor(weights, count, kept) {
  const all = new Float32Array(kept.length ** 2);
  kept.forEach((i, y) => kept.forEach((j, z) => {
    all[y * kept.length + z] = weights[i * count + j];
  }));
  all.sort();
  const least = all[Math.max(0, all.length - Math.ceil(2.2 * kept.length))];
  return Math.floor(100 * Math.sqrt(least || 0));
}

// Draw the lines of heads, each [weights, colour], from `least` on; of a
// token that is active its own alone. Returns how many were drawn, and how
// many there are.
function drawLines(canvas, {heads, count, kept, high, active, least, width,
  left, right}) {
  const tall = high * kept.length;
  if (!width || !tall) return [0, 0];
  // No browser has a canvas of any size
  const scale = Math.min(devicePixelRatio || 1, 16000 / tall,
    Math.sqrt(12e6 / (width * tall)));
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(tall * scale);
  canvas.style.width = width + 'px';
  canvas.style.height = tall + 'px';
  const pen = canvas.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  const bend = (right - left) / 2, into = colour('in');
  let drawn = 0, passed = 0;
  heads.forEach(([weights, ink], at) => {
    // Those of several heads lie beside each other
    const shift = (at - (heads.length - 1) / 2) * Math.min(2.2, 14 /
      heads.length);
    const found = [];
    kept.forEach((i, y) => kept.forEach((j, z) => {
      const weight = weights[i * count + j];
      if (weight >= least && (active === null || active === i ||
          active === j)) found.push([weight, y, z, i]);
    }));
    passed += found.length;
    pen.setLineDash(DASHES[at % 4]);
    const most = Math.floor(MOST_LINES / heads.length);
    if (found.length > most) {
      found.sort((a, b) => b[0] - a[0]);
      found.length = most;
    }
    drawn += found.length;
    for (const [weight, y, z, i] of found) {
      pen.strokeStyle = active === null || i === active ? ink : into;
      pen.globalAlpha = 0.12 + 0.88 * shade(weight);
      pen.lineWidth = 0.6 + 3.4 * weight;
      const from = (y + 0.5) * high + shift, to = (z + 0.5) * high + shift;
      pen.beginPath();
      pen.moveTo(left, from);
      pen.bezierCurveTo(left + bend, from, right - bend, to, right, to);
      pen.stroke();
    }
  });
  return [drawn, passed];
}
