/* Asks the server again when a control moves, shows its answers, sends forms, chats; knows nothing about plans. */
(() => {
  const send = (url, fields, signal) => fetch(url, { method: "POST", signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify(fields) });
  // Puts HTML of the server in place; focus, open folds, hidden series, sorting, scrolling and replies to forms stay.
  const STOPS = "a,button,input,select,textarea,summary,[tabindex]";
  const nameOf = one => [one.tagName, one.name, one.getAttribute("href"), one.getAttribute("aria-label") || (one.querySelector(".name") || one).textContent.trim(), one.closest("form")?.dataset.post].join("|");
  const named = (place, selector) => { const seen = new Map(); return [...place.querySelectorAll(selector)].map(one => { const name = nameOf(one), count = seen.get(name) || 0; seen.set(name, count + 1); return [`${name}|${count}`, one]; }); };
  const put = (place, html) => {
    const focused = place.contains(document.activeElement) && document.activeElement !== place ? document.activeElement : null;
    const old = named(place, STOPS), kept = new Map(old.map(([name, one]) => [name, { one, open: one.tagName === "SUMMARY" && one.parentElement.open, pressed: one.getAttribute("aria-pressed"), sorted: one.closest("th")?.getAttribute("aria-sort"), top: one.scrollTop, left: one.scrollLeft }]));
    const replies = new Map([...place.querySelectorAll("form[data-post] .said")].map(said => [said.closest("form").dataset.post, said]));
    place.innerHTML = html;
    place.dispatchEvent(new CustomEvent("moebox:shown", { bubbles: true }));
    for (const said of place.querySelectorAll("form[data-post] .said")) { const before = replies.get(said.closest("form").dataset.post); if (before?.textContent === "…" || before?.classList.contains("bad")) said.replaceWith(before); }
    const fresh = named(place, STOPS);
    for (const [name, one] of fresh) {
      const before = kept.get(name); if (!before) continue;
      if (before.open) one.parentElement.open = true;
      if (before.pressed === "false" || before.sorted) one.click();
      if (before.sorted === "descending") one.click();
      one.scrollTop = before.top; one.scrollLeft = before.left;
    }
    if (!focused) return;
    const name = old.find(([, one]) => one === focused)?.[0], again = fresh.find(each => each[0] === name)?.[1];
    if (again && "value" in again && again.type !== "submit") again.value = focused.value;
    if (!again) place.tabIndex = -1; // its button is gone: Tab goes on from here
    (again || place).focus({ preventScroll: true });
  };
  const showReply = async (reply, said) => {
    let answer = {};
    try { answer = await reply.json(); } catch { answer = { error: `HTTP ${reply.status}` }; }
    said.textContent = answer.error ? [answer.error, answer.hint].filter(Boolean).join(" – ") : answer.good || answer.path || "done";
    said.className = `said ${answer.error ? "bad" : "good"}`;
    const checked = said.closest("form")?.querySelector(".checked");
    if (checked) put(checked, answer.html || "");
    if (answer.go) location.href = answer.go;
    return Boolean(answer.go);
  };
  const requests = new WeakMap(); // form -> its last request
  const post = async (form, url) => {
    const said = form.querySelector(".said"), checks = url === form.dataset.check;
    if (form.dataset.sending) return; // a second click on Start is not a second run
    requests.get(form)?.abort();
    const request = new AbortController(); requests.set(form, request);
    if (!checks) { form.dataset.sending = "1"; said.className = "said"; said.textContent = "…"; }
    let leaving = false;
    try { leaving = await showReply(await send(url, Object.fromEntries(new FormData(form)), request.signal), said); }
    catch (problem) { if (problem.name !== "AbortError") { said.className = "said bad"; said.textContent = `moebox does not answer: ${problem.message}`; } }
    finally { if (!checks && !leaving) delete form.dataset.sending; }
  };
  addEventListener("pageshow", () => document.querySelectorAll("[data-sending]").forEach(form => { delete form.dataset.sending; })); // back from the run
  document.addEventListener("submit", event => {
    const form = event.target;
    if (!form.dataset.post) return;
    event.preventDefault();
    if (!form.dataset.confirm || confirm(form.dataset.confirm)) post(form, form.dataset.post);
  });
  document.addEventListener("click", event => { const url = event.target.dataset?.to; if (url && event.target.form.reportValidity()) post(event.target.form, url); });
  // A reload, or the way back from a run, keeps what was typed, for as long as the recipe below it is the same.
  const read = (place, name) => { try { return JSON.parse(place.getItem(`moebox-${name}`)) || {}; } catch { return {}; } };
  const store = (place, name, value) => { try { place.setItem(`moebox-${name}`, JSON.stringify(value)); } catch { /* no storage: nothing is kept */ } };
  const restore = () => {
    const area = document.querySelector("form[data-check] [name=text]"), draft = read(sessionStorage, `draft ${location.pathname}${location.search}`);
    if (area && draft.base === area.defaultValue && draft.text !== draft.base) { area.value = draft.text; area.closest("details").open = true; }
  };
  restore();
  document.addEventListener("reset", event => { const form = event.target; if (form.dataset.check) setTimeout(() => { store(sessionStorage, `draft ${location.pathname}${location.search}`, {}); post(form, form.dataset.check); }); });
  let typing = 0;
  document.addEventListener("input", event => {
    const form = event.target.name === "text" && event.target.form;
    if (!form?.dataset.check) return;
    clearTimeout(typing); store(sessionStorage, `draft ${location.pathname}${location.search}`, { base: event.target.defaultValue, text: event.target.value }); typing = setTimeout(() => post(form, form.dataset.check), 500);
  });
  document.querySelectorAll("form[data-now]").forEach(form => post(form, form.dataset.check));
  const chat = document.getElementById("chat");
  if (chat) {
    const talk = document.getElementById("talk"), said = chat.querySelector(".said"), stop = chat.querySelector("[data-stop]");
    const settings = ["engine", "system", "temperature", "max_tokens", "tools"];
    let messages = [], running = null;
    const bubble = (kind, text) => { const made = document.createElement("article"); made.className = kind; made.textContent = text; talk.append(made); return made; };
    const keep = () => [sessionStorage, localStorage].forEach(place => store(place, "chat", { messages, ...Object.fromEntries(settings.map(name => [name, chat.elements[name].value])) })); // a tab's own, and the last one for new tabs
    const kept = { ...read(localStorage, "chat"), ...read(sessionStorage, "chat") };
    messages = kept.messages || []; chat.elements.text.value = read(sessionStorage, "chat-text").text || "";
    settings.forEach(name => { if (kept[name] && (name !== "engine" || [...chat.elements.engine.options].some(one => one.value === kept.engine))) chat.elements[name].value = kept[name]; });
    chat.elements.text.addEventListener("input", () => store(sessionStorage, "chat-text", { text: chat.elements.text.value }));
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
      const sent = bubble(asked ? "tool" : "user", text), write = value => { chat.elements.text.value = value; store(sessionStorage, "chat-text", { text: value }); };
      write(""); keep();
      chat.scrollIntoView({ block: "end", behavior: "instant" });
      running = new AbortController(); stop.disabled = false; said.className = "said"; said.textContent = "…";
      let thinking = null, answer = null, calls = new Map(), usage = null, first = 0, seconds = 0; const began = performance.now();
      const take = document_ => { const below = chat.getBoundingClientRect().bottom <= innerHeight + 4; show(document_); if (below) chat.scrollIntoView({ block: "end", behavior: "instant" }); }; // a reader who scrolled up stays there
      const show = document_ => {
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
      const end = () => { // also if the page is left in the middle of a reply
        if (answer || thinking || calls.size) messages.push({ role: "assistant", content: answer?.textContent || "", ...(thinking && { thinking: thinking.textContent }), ...(calls.size && { tool_calls: [...calls.values()].map(({ shown, ...call }) => call) }) });
        answer = thinking = null; calls = new Map(); keep();
      };
      addEventListener("pagehide", end);
      try {
        const reply = await fetch("/chat", { method: "POST", signal: running.signal, headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...Object.fromEntries(settings.map(name => [name, chat.elements[name].value])), messages: JSON.stringify([...(chat.elements.system.value.trim() ? [{ role: "system", content: chat.elements.system.value }] : []), ...messages.map(({ thinking, ...rest }) => rest)]) }) });
        if (!reply.ok) { await showReply(reply, said); messages.length -= asked?.length || 1; sent.remove(); write(text); return; } // not sent: it can be sent again
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
        end(); removeEventListener("pagehide", end); running = null;
        if (document.activeElement === stop) chat.elements.text.focus();
        stop.disabled = true;
      }
    });
    chat.addEventListener("keydown", event => { if (event.key === "Escape") running?.abort(); });
    chat.elements.text.addEventListener("keydown", event => { if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); chat.requestSubmit(); } });
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
        put(answer, await reply.text());
        answer.dataset.took = (performance.now() - began).toFixed(1);
        answer.classList.remove("busy");
        restore();
        if (!layout) form.dataset.layout = `${form.elements.context.value}:${form.elements.concurrency.value}`;
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
    const live = document.getElementById("live"), lost = document.getElementById("lost"), stream = new EventSource(stage.dataset.events);
    let latest = null;
    const show = () => { // not while text of it is being selected
      const selection = getSelection();
      if (latest === null || (!selection.isCollapsed && live.contains(selection.anchorNode))) return;
      put(live, latest); latest = null;
    };
    document.addEventListener("selectionchange", show);
    stream.onmessage = event => { lost.textContent = ""; latest = JSON.parse(event.data); show(); };
    stream.onerror = () => { lost.textContent = stream.readyState === EventSource.CLOSED ? "This is no longer updated: load the page again." : "moebox does not answer, so this is not updated; trying again …"; };
  }
})();
