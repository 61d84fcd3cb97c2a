// The words of a caption; each shows, over the photograph, where the model looked for it.
"use strict";

const Heat = (() => {
  // Black over red and orange to pale yellow, as a share of the map's largest value.
  const STOPS = [[0, 0, 4], [87, 16, 110], [188, 55, 84], [249, 142, 9], [252, 255, 164]];

  function colour(share) {
    const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
    const low = Math.min(Math.floor(at), STOPS.length - 2);
    return STOPS[low].map((value, channel) => value + (STOPS[low + 1][channel] - value) * (at - low));
  }

  // map: height x width numbers, any scale.
  function paint(canvas, map, height, width) {
    // A uniform map lights nothing: full brightness is at three times the mean, or more.
    const mean = map.reduce((sum, value) => sum + value, 0) / map.length;
    const most = Math.max(...map, 3 * mean, 1e-9);
    const small = document.createElement("canvas");
    small.width = width;
    small.height = height;
    const pixels = new ImageData(width, height);
    // Where the model looked little, the photograph shows through, darker.
    map.forEach((value, at) => pixels.data.set([...colour(value / most), 120 + 90 * (value / most)], 4 * at));
    small.getContext("2d").putImageData(pixels, 0, 0);
    canvas.width = canvas.height = 256;
    const context = canvas.getContext("2d");
    context.imageSmoothingQuality = "high";
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
  }

  // Adds one button per word to `line`. Hovering over a button or focusing it lays its map over the photograph; pressing
  // it keeps the map there. maps: one per word, or none if the model does not attend. probabilities: of each word, or
  // none; the likelier a word is, the darker is the line below it. reached: called with the index of a focused word.
  function words(line, frame, canvas, tokens, maps, height, width, probabilities = [], reached = null) {
    let kept = null;
    frame.classList.remove("on");
    const show = (at) => {
      frame.classList.toggle("on", at !== null);
      if (at !== null) paint(canvas, maps[at], height, width);
    };
    const parts = tokens.map((token, at) => {
      const part = document.createElement(maps.length || reached ? "button" : "span");
      part.textContent = token;
      if (probabilities.length) {
        const share = probabilities[at];
        part.style.borderBottom = `3px solid color-mix(in srgb, var(--mark) ${Math.round(100 * share)}%, var(--soft))`;
        part.title = `${(100 * share).toFixed(0)} % likely here`;
      }
      if (reached) {
        part.type = "button";
        part.addEventListener("focus", () => reached(at));
        part.addEventListener("click", () => reached(at));
      }
      if (!maps.length) return part;
      part.type = "button";
      part.setAttribute("aria-pressed", "false");
      part.addEventListener("mouseenter", () => show(at));
      part.addEventListener("focus", () => show(at));
      part.addEventListener("mouseleave", () => show(kept));
      part.addEventListener("blur", () => show(kept));
      part.addEventListener("click", () => {
        kept = kept === at ? null : at;
        parts.forEach((other, place) => other.setAttribute("aria-pressed", String(place === kept)));
        show(kept === null ? at : kept);
      });
      return part;
    });
    line.replaceChildren(...parts);
  }

  const decoded = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

  // The photograph of a card (tasks/evaluation/cards.py) and the line of its words. alt: a description of it.
  function card(item, alt) {
    const [frame, image, canvas, line] = ["div", "img", "canvas", "div"].map((tag) => document.createElement(tag));
    frame.className = "looked";
    frame.style.aspectRatio = `${item.width} / ${item.height}`;
    image.src = `data:image/jpeg;base64,${item.photograph}`;
    image.alt = alt;
    image.loading = "lazy";
    canvas.setAttribute("aria-hidden", "true");
    frame.append(image, canvas);
    line.className = "words";
    const cells = item.side[0] * item.side[1];
    const bytes = decoded(item.maps);
    const maps = cells ? item.tokens.map((_, word) => [...bytes.subarray(word * cells, (word + 1) * cells)]) : [];
    words(line, frame, canvas, item.tokens, maps, ...item.side, item.probabilities);
    return [frame, line];
  }

  return { words, card };
})();
