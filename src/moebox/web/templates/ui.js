/* Asks the server again when a control moves, shows its answers, sends forms, chats; knows nothing about plans. */
(() => {
  const send = (url, fields) => fetch(url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields) });
  const showReply = async (reply, said) => {
    let answer = {};
    try { answer = await reply.json(); } catch { answer = { error: `HTTP ${reply.status}` }; }
    said.textContent = answer.error ? [answer.error, answer.hint].filter(Boolean).join(" – ") : answer.good || answer.path || "done";
    said.className = `said ${answer.error ? "bad" : "good"}`;
    const checked = said.closest("form")?.querySelector(".checked");
    if (checked) { checked.innerHTML = answer.html || ""; checked.dispatchEvent(new CustomEvent("moebox:shown", { bubbles: true })); }
    if (answer.go) location.href = answer.go;
  };
  const post = async (form, url) => {
    const said = form.querySelector(".said");
    said.textContent = "…";
    try { await showReply(await send(url, Object.fromEntries(new FormData(form))), said); }
    catch (problem) { said.textContent = `moebox does not answer: ${problem.message}`; }
  };
  document.addEventListener("submit", event => {
    const form = event.target;
    if (!form.dataset.post) return;
    event.preventDefault();
    if (!form.dataset.confirm || confirm(form.dataset.confirm)) post(form, form.dataset.post);
  });
  document.addEventListener("click", event => { const url = event.target.dataset?.to; if (url && event.target.form.reportValidity()) post(event.target.form, url); });
  let typing = 0;
  document.addEventListener("input", event => {
    const form = event.target.name === "text" && event.target.form;
    if (!form?.dataset.check) return;
    clearTimeout(typing); typing = setTimeout(() => post(form, form.dataset.check), 500);
  });
  document.querySelectorAll("form[data-now]").forEach(form => post(form, form.dataset.check));
  const chat = document.getElementById("chat");
  if (chat) {
    const talk = document.getElementById("talk"), said = chat.querySelector(".said"), stop = chat.querySelector("[data-stop]");
    const settings = ["engine", "system", "temperature", "max_tokens", "tools"];
    let messages = [], running = null;
    const bubble = (kind, text) => { const made = document.createElement("article"); made.className = kind; made.textContent = text; talk.append(made); return made; };
    const keep = () => { try { localStorage.setItem("moebox-chat", JSON.stringify({ messages, ...Object.fromEntries(settings.map(name => [name, chat.elements[name].value])) })); } catch { /* no storage: nothing is kept */ } };
    try {
      const kept = JSON.parse(localStorage.getItem("moebox-chat") || "{}");
      messages = kept.messages || [];
      settings.forEach(name => { if (kept[name] && (name !== "engine" || [...chat.elements.engine.options].some(one => one.value === kept.engine))) chat.elements[name].value = kept[name]; });
    } catch { /* written by another version */ }
    for (const message of messages) {
      if (message.thinking) bubble("thinking", message.thinking);
      if (message.content) bubble(message.role, message.content);
      for (const call of message.tool_calls || []) bubble("call", `${call.function.name} ${call.function.arguments}`);
    }
    const wanted = new URLSearchParams(location.search).get("engine");
    if (wanted) chat.elements.engine.value = wanted;
    chat.addEventListener("change", keep);
    chat.addEventListener("reset", event => { event.preventDefault(); running?.abort(); messages = []; talk.replaceChildren(); said.textContent = ""; keep(); }); // settings stay
    stop.addEventListener("click", () => running?.abort());
    chat.addEventListener("submit", async event => {
      event.preventDefault();
      const text = chat.elements.text.value.trim();
      if (!text || running) return;
      const asked = messages.at(-1)?.tool_calls;
      if (asked) asked.forEach(call => messages.push({ role: "tool", tool_call_id: call.id, content: text })); else messages.push({ role: "user", content: text });
      bubble(asked ? "tool" : "user", text); chat.elements.text.value = ""; keep();
      running = new AbortController(); stop.disabled = false; said.textContent = "…";
      let thinking = null, answer = null, calls = new Map(), usage = null, first = 0, seconds = 0; const began = performance.now();
      const take = document_ => {
        if (document_.error) { bubble("error", typeof document_.error === "string" ? document_.error : document_.error.message || "error"); return; }
        if (document_.moebox) { seconds = document_.moebox.seconds; return; }
        if (document_.usage) usage = document_.usage;
        const delta = document_.choices?.[0]?.delta; if (!delta) return;
        const reasoning = delta.reasoning_content ?? delta.reasoning;
        if ((reasoning || delta.content) && !first) first = performance.now() - began;
        if (reasoning) { thinking ??= bubble("thinking", ""); thinking.textContent += reasoning; }
        if (delta.content) { answer ??= bubble("assistant", ""); answer.textContent += delta.content; }
        for (const call of delta.tool_calls || []) {
          if (!calls.has(call.index)) calls.set(call.index, { shown: bubble("call", ""), id: call.id || `call-${call.index}`, type: "function", function: { name: "", arguments: "" } });
          const made = calls.get(call.index); made.function.name += call.function?.name || ""; made.function.arguments += call.function?.arguments || "";
          made.shown.textContent = `${made.function.name} ${made.function.arguments}`;
        }
      };
      try {
        const reply = await fetch("/chat", { method: "POST", signal: running.signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...Object.fromEntries(settings.map(name => [name, chat.elements[name].value])), messages: JSON.stringify([...(chat.elements.system.value.trim() ? [{ role: "system", content: chat.elements.system.value }] : []), ...messages.map(({ thinking, ...rest }) => rest)]) }) });
        if (!reply.ok) { await showReply(reply, said); return; }
        const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader(); let rest = "";
        for (;;) {
          const { done, value } = await reader.read(); if (done) break;
          const lines = (rest + value).split("\n"); rest = lines.pop();
          for (const line of lines) if (line.startsWith("data:") && line.trim() !== "data: [DONE]") { try { take(JSON.parse(line.slice(5))); } catch { /* half a line of a broken stream */ } }
        }
        const tokens = usage?.completion_tokens, rate = tokens && seconds > first / 1e3 ? tokens / (seconds - first / 1e3) : 0;
        said.textContent = `${tokens ?? "?"} tokens, first after ${Math.round(first)} ms${rate ? `, ${rate.toFixed(1)} tok/s` : ""}`;
      } catch (problem) { said.textContent = problem.name === "AbortError" ? "stopped" : `moebox does not answer: ${problem.message}`; }
      finally {
        if (answer || thinking || calls.size) messages.push({ role: "assistant", content: answer?.textContent || "", ...(thinking && { thinking: thinking.textContent }), ...(calls.size && { tool_calls: [...calls.values()].map(({ shown, ...call }) => call) }) });
        keep(); running = null; stop.disabled = true;
      }
    });
    chat.elements.text.addEventListener("keydown", event => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); chat.requestSubmit(); } });
  }
  (async () => {
    for (const cell of document.querySelectorAll("[data-fit]")) {
      try { const fit = await (await fetch(cell.dataset.fit)).json(); cell.textContent = fit.text; cell.className = fit.tone; }
      catch { cell.textContent = "moebox does not answer"; return; }
    }
  })();
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
      const put = () => { form.elements[name].value = values[slider.value]; document.getElementById(`${name}-shown`).textContent = Number(values[slider.value]) ? Number(values[slider.value]).toLocaleString("en") : "planner's choice"; };
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
