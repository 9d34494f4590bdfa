/* Asks the server again when a control moves, and shows its answer; knows nothing about plans. */
(() => {
  const form = document.querySelector("form.controls"), answer = document.getElementById("answer");
  if (form) {
    let running = null;
    const ask = async layout => {
      running?.abort(); running = new AbortController();
      const query = new URLSearchParams(new FormData(form));
      history.replaceState(null, "", `/?${query}`);
      if (layout) query.set("layout", form.dataset.layout);
      answer.classList.add("busy");
      const began = performance.now();
      try {
        const reply = await fetch(`/plan?${query}`, { signal: running.signal });
        answer.innerHTML = await reply.text();
        answer.dataset.took = (performance.now() - began).toFixed(1);
        answer.classList.remove("busy");
        if (!layout) form.dataset.layout = `${form.elements.context.value}:${form.elements.concurrency.value}`;
        answer.dispatchEvent(new CustomEvent("moebox:shown", { bubbles: true }));
      } catch (problem) { if (problem.name !== "AbortError") answer.textContent = `moebox does not answer: ${problem.message}`; }
    };
    form.querySelectorAll("input[type=range]").forEach(slider => {
      const values = slider.dataset.values.split(","), name = slider.dataset.name;
      const put = () => { form.elements[name].value = values[slider.value]; document.getElementById(`${name}-shown`).textContent = Number(values[slider.value]).toLocaleString("en"); };
      slider.addEventListener("input", () => { put(); ask(true); });
      slider.addEventListener("change", () => { put(); ask(false); });
    });
    if (answer.dataset.pending !== undefined) ask(false);
    form.addEventListener("change", event => { if (event.target.type !== "range") ask(false); });
    form.addEventListener("submit", event => { event.preventDefault(); ask(false); });
  }
  const stage = document.querySelector("[data-events]");
  if (stage) {
    const live = document.getElementById("live"), stream = new EventSource(stage.dataset.events);
    stream.onmessage = event => {
      const open = new Set([...live.querySelectorAll("details[open]>summary")].map(one => one.textContent));
      live.innerHTML = JSON.parse(event.data);
      live.querySelectorAll("details>summary").forEach(one => { if (open.has(one.textContent)) one.parentElement.open = true; });
      live.dispatchEvent(new CustomEvent("moebox:shown", { bubbles: true }));
    };
  }
})();
