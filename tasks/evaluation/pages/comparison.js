"use strict";
(() => {
  const { data, at, signed, element, row } = Page;

  const others = data.scores.slice(1);
  at("scores").append(row(["score", ...data.names], "th"),
    ...others[0].map((first, place) => row([first.score, first.first.toFixed(2), ...others.map((scores) => {
      const { second, low, high } = scores[place];
      const gain = second - first.first;
      return `${second.toFixed(2)} (${signed(gain)}, ${signed(low)} to ${signed(high)})`;
    })])));

  function card(item, name, reference) {
    const made = element("article", "", element("h3", name), ...Heat.card(item, reference));
    made.className = "card";
    return made;
  }

  for (const picture of data.pictures) {
    const said = element("ul", "", ...picture.references.map((text) => element("li", text)));
    said.className = "quiet";
    const cards = element("div", "", ...picture.cards.map((item, place) => card(item, data.names[place], picture.references[0])));
    cards.className = "cards";
    const made = element("section", "", said, cards);
    made.className = "picture";
    at("pictures").append(made);
  }
})();
