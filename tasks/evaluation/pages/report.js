"use strict";
(() => {
  const { data, at, signed, element, row } = Page;
  const number = (value) => value.toFixed(2);

  const main = data.scores.filter((item) => ["BLEU-4", "METEOR", "CIDEr", "truth"].includes(item.name));
  at("summary").textContent = main.map((item) => `${item.name} ${item.value.toFixed(1)}`).join(", ");
  at("signature").textContent = `How they are computed: ${data.signature.replaceAll("|", " \u00b7 ")}`;
  at("scores").append(row(["score", "%", "95 % interval"], "th"),
    ...data.scores.map((item) => row([item.name, number(item.value), `${number(item.low)} to ${number(item.high)}`])));
  for (const rival of data.compared) {
    const table = element("table", "", row(["score", rival.name, "this one", "difference", "95 % interval", "better in"], "th"),
      ...rival.scores.map((item) => row([item.score, number(item.first), number(item.second),
        signed(item.second - item.first), `${signed(item.low)} to ${signed(item.high)}`,
        `${(100 * item.better).toFixed(1)} % of resamples`])));
    at("rivals").append(element("h2", `Against ${rival.name}, on the same pictures`), element("div", "", table));
    at("rivals").lastChild.className = "wide";
    at("rivals").lastChild.tabIndex = 0; // it scrolls where the screen is narrow
  }
  if (data.earlier.length) {
    const names = data.scores.map((item) => item.name);
    const reviewed = data.earlier.some((item) => item.reviewed);
    const table = element("table", "", row(["version", ...names, "scored", ...(reviewed ? ["people"] : [])], "th"),
      ...data.earlier.map((item) => row([item.name,
        ...names.map((name) => (name in item.scores ? number(item.scores[name]) : "")),
        item.same ? "on these pictures, alike" : "on other pictures or settings", ...(reviewed ? [item.reviewed] : [])])));
    at("rivals").append(element("h2", "Earlier versions"), element("div", "", table));
    at("rivals").lastChild.className = "wide";
    at("rivals").lastChild.tabIndex = 0; // it scrolls where the screen is narrow
  }
  if (data.copied.length) {
    at("copied").append(row(["score", "copied, %", "gain of the model, 95 % interval"], "th"),
      ...data.copied.map((item) => row([item.name, number(item.value),
        `${signed(item.gain[0])} to ${signed(item.gain[1])}`])));
  }
  at("neighbours").textContent = data.neighbours;
  at("language").textContent = data.language;
  at("confidence").textContent = data.confidence || "How sure the model is of a caption was not judged here.";
  at("how").textContent = data.attends
    ? "Pass over a word, or reach it with the Tab key, to see where the model looked for it."
    : "This decoder gets the picture in its first state alone: there are no attention maps.";
  if (Object.values(data.cards).some((item) => item.neighbours.length)) {
    at("how").textContent += " The small pictures are the training pictures whose captions support the caption the most.";
  }
  if (!data.shows) at("how").textContent += " The data set has grids and no photographs: a square stands for each.";

  // A training picture that supports a caption.
  function neighbour(item) {
    const figure = element("figure", "", element("figcaption", item.captions[0]));
    if (item.photograph) {
      const image = element("img");
      image.src = `data:image/jpeg;base64,${item.photograph}`;
      image.alt = item.captions[0];
      image.loading = "lazy";
      figure.prepend(image);
    }
    figure.title = item.captions.join("\n");
    return figure;
  }

  function card(digest) {
    const item = data.cards[digest];
    const [caption, references, score] = data.rows[item.row];
    const said = element("ul", "", ...references.map((text) => element("li", text)));
    said.className = "quiet";
    const near = element("div", "", ...item.neighbours.map(neighbour));
    near.className = "near";
    const made = element("article", "", ...Heat.card(item, references[0]), said, near, element("div", `sentence BLEU ${number(score)}`
      + (item.confidence === null ? "" : `, confidence ${(100 * item.confidence).toFixed(0)} %`)));
    made.className = "card";
    made.lastChild.className = "quiet";
    made.dataset.text = [caption, ...references].join("\n");
    return made;
  }

  for (const [name, digests] of Object.entries(data.groups)) {
    const cards = element("div", "", ...digests.map(card));
    cards.className = "cards";
    at("groups").append(element("section", "", element("h3", name[0].toUpperCase() + name.slice(1)), cards));
  }

  at("found").append(row(["caption", "a person wrote", "sentence BLEU"], "th"),
    ...data.rows.map(([caption, references, score]) => {
      const made = row([caption, references[0] || "", number(score)]);
      made.dataset.text = [caption, ...references].join("\n");
      return made;
    }));

  const filterable = [...document.querySelectorAll("[data-text]")];
  function filter() {
    const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const item of filterable) {
      const text = item.dataset.text.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      shown += !item.hidden && item.tagName === "TR";
    }
    at("count").textContent = `${shown.toLocaleString("en")} of ${data.rows.length.toLocaleString("en")} captions shown; ${data.left_out}`;
  }
  at("filter").addEventListener("input", filter);
  filter();
})();
