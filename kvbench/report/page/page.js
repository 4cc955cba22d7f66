// Pressed methods stand out in the charts of their section; without scripts all are shown alike.
for (const section of document.querySelectorAll(".figures")) {
  const buttons = [...section.querySelectorAll("button[data-series]")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") === "true";
      button.setAttribute("aria-pressed", String(!pressed));
      const shown = new Set(
        buttons
          .filter((other) => other.getAttribute("aria-pressed") === "true")
          .map((other) => other.dataset.series),
      );
      section.classList.toggle("picked", shown.size > 0);
      for (const mark of section.querySelectorAll(".series")) {
        const name = mark.dataset.series;
        mark.classList.toggle("shown", shown.has(name) || name === "fullkv");
      }
    });
  }
}
