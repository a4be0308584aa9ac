// The theme's button, a button that copies each block of code, and the place of this page in the navigation.
(() => {
  "use strict";

  const page = document.documentElement;
  const button = document.querySelector(".theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (page.dataset.theme ? page.dataset.theme === "dark" : system.matches);

  function nameButton() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Show in light colours" : "Show in dark colours");
  }

  button.hidden = false;
  nameButton();
  system.addEventListener("change", nameButton);
  button.addEventListener("click", () => {
    page.dataset.theme = isDark() ? "light" : "dark";
    nameButton();
    try {
      localStorage.setItem("headgate-theme", page.dataset.theme);
    } catch {
      // It holds for this page then.
    }
  });

  // Of a session at a terminal only what was typed is copied, without the prompts.
  function textOf(block) {
    const typed = [...block.querySelectorAll(".typed")];
    return typed.length ? typed.map((line) => line.textContent).join("\n") : block.textContent.trimEnd();
  }

  async function copy(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    // A page that came over plain HTTP has no clipboard: let the reader see what is selected.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    return undefined;
  }

  for (const block of document.querySelectorAll("pre")) {
    const frame = document.createElement("div");
    frame.className = "code";
    block.replaceWith(frame);
    block.tabIndex = 0;
    const copies = document.createElement("button");
    copies.type = "button";
    copies.className = "copy";
    copies.textContent = "Copy";
    copies.addEventListener("click", async () => {
      try {
        await copy(textOf(block));
        copies.textContent = "Copied";
      } catch {
        copies.textContent = "Not allowed";
      }
      setTimeout(() => { copies.textContent = "Copy"; }, 2000);
    });
    frame.append(block, copies);
  }

  // A long list begins where the reader is.
  document.querySelector("#navigation [aria-current]")?.scrollIntoView({ block: "nearest" });
})();
