// The form of a new dump: shows the command that does the same while it is filled in, and leads to the dump it began.

const form = document.getElementById("new-dump");
const shown = document.getElementById("as");

// As a shell needs it.
const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
const lines = (name) => form.elements[name].value.split("\n").map((line) => line.trim()).filter(Boolean);

function words() {
  const { elements } = form;
  const found = ["headgate", "dump", elements.source.value || "SOURCE", elements.target.value || "TARGET"];
  for (const [name, option] of [["tables", "--table"], ["include", "--include"], ["exclude", "--exclude"]]) {
    for (const line of lines(name)) found.push(option, line);
  }
  if (elements.mode.value !== "append") found.push("--mode", elements.mode.value);
  if (elements.workers.value !== "2") found.push("--workers", elements.workers.value);
  if (elements.chunk_rows.value) found.push("--chunk-rows", elements.chunk_rows.value);
  if (elements.rate.value) found.push("--rate", elements.rate.value);
  for (const [name, option] of [["schema_only", "--schema-only"], ["data_only", "--data-only"], ["spread", "--spread"]]) {
    if (elements[name]?.checked) found.push(option);
  }
  return [...found, "--detach", "--on", location.origin];
}

function show() {
  shown.textContent = words().map(quoted).join(" ");
  form.dataset.as = shown.textContent;
}

form.addEventListener("input", show);
form.addEventListener("acted", ({ detail }) => location.assign(`/dumps/${encodeURIComponent(detail.id)}`));
show();
