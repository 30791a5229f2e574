// The editor of the pages Inspect and Check: a textarea over its own coloured text, with line numbers, search, jumps, marked lines.
// It asks nobody for anything: no other script, no request. Text goes to Python only when somebody runs it. With
// `data.read` it only shows its text. With `data.counts` (line -> number) each of these lines has its number beside it, and a
// click on it is told to Python; `data.chosen` is the line that is shaded. With `data.form` its text belongs to a form: Python
// gets it whenever it loses the focus, so that it counts with a click on a button outside. `data.put` replaces the text once.
// `data.python` says that the text is Python. A text that was typed stays in the tab until it was run: `data.ran` has the keys
// of the editors whose text became a trial.
const LINE = 18;             // px, as in the style sheet
const AROUND = 40;           // lines above and below those in sight that are coloured
const MOST_HITS = 400;
const COLOURED = /(\/\*[\s\S]*?(?:\*\/|$)|\/\/[^\n]*)|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|^([ \t]*#[^\n]*)|\b(alignas|auto|bool|break|case|char|const|constexpr|continue|default|do|double|else|enum|extern|false|float|for|if|inline|int|long|namespace|nullptr|operator|return|short|signed|sizeof|static|static_assert|struct|switch|template|true|typedef|typename|unsigned|using|void|volatile|while|__device__|__global__|__host__|__shared__|__forceinline__|__launch_bounds__|__restrict__|__syncthreads)\b|\b(0[xX][\da-fA-F]+|\d[\d.]*(?:[eE][-+]?\d+)?[fFuUlL]*)\b/gm;
const PYTHON = /(#[^\n]*)|("""[\s\S]*?(?:"""|$)|\'\'\'[\s\S]*?(?:\'\'\'|$)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|^([ \t]*@[\w.]+)|\b(False|None|True|and|as|assert|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|self|super|try|while|with|yield)\b|\b(\d[\d_.]*(?:[eE][-+]?\d+)?)\b/gm;
const CLASSES = ['c', 's', 'p', 'k', 'n'];

export default function (component) {
  const {parentElement, data, setStateValue, setTriggerValue} = component;
  const root = parentElement.querySelector('.kwed');
  const at = name => root.querySelector(name);
  const [text, colours, numbers, marks, code, body] = ['textarea', '.colours', '.numbers', '.marks', '.code', '.body'].map(at);
  const [find, count, jump, said, errors, run, revert] = ['.find', '.count', '.jump', '.said', '.errors', '.run', '.revert'].map(at);
  const draftOf = key => `kernel workbench edit ${key}`, ranOf = key => `kernel workbench ran ${key}`;
  const draft = draftOf(data.key);
  const stored = () => { if (data.read) return null; try { return sessionStorage.getItem(draft); } catch { return null; } };
  const store = value => {
    try {
      sessionStorage.removeItem(ranOf(data.key));
      value === data.text ? sessionStorage.removeItem(draft) : sessionStorage.setItem(draft, value);
    } catch { /* full */ }
  };
  function forget() {   // what was run, and not changed since, is the text of another trial now
    try {
      for (const key of (data.ran ?? []).filter(key => sessionStorage.getItem(ranOf(key)))) {
        [draftOf, ranOf].forEach(name => sessionStorage.removeItem(name(key)));
      }
    } catch { /* no storage */ }
  }
  function send() {
    if (!data.form || data.read || root.kwSent === text.value) return;
    root.kwSent = text.value;
    setStateValue('text', text.value);
  }
  function putOnce() {   // a reload or a second drawing does not put it again
    const name = 'kernel workbench put';
    try {
      if (!data.put || sessionStorage.getItem(name) === data.put.id) return false;
      sessionStorage.setItem(name, data.put.id);
      sessionStorage.setItem(draft, data.put.text);
    } catch { if (!data.put || root.kwPut === data.put.id) return false; }
    root.kwPut = data.put.id;
    text.value = data.put.text;
    return true;
  }
  const was = data.text.split('\n');
  let hits = [], hit = -1, lines = [], edit = null;

  const escape = s => s.replace(/&/g, '&amp;').replace(/</g, '&lt;');
  const lineOf = place => text.value.slice(0, place).split('\n').length;

  function coloured(source) {
    let out = '', last = 0;
    for (const found of source.matchAll(data.python ? PYTHON : COLOURED)) {
      const kind = found.slice(1).findIndex(group => group !== undefined);
      out += escape(source.slice(last, found.index)) + `<i class=${CLASSES[kind]}>${escape(found[0])}</i>`;
      last = found.index + found[0].length;
    }
    return out + escape(source.slice(last)) + '\n';
  }

  // The first and last line that differ from the text as it came: marks above stay, marks below move, marks within are old.
  function changed(now) {
    let head = 0, tail = 0;
    while (head < was.length && head < now.length && was[head] === now[head]) head++;
    if (head === was.length && head === now.length) return null;
    while (tail < was.length - head && tail < now.length - head && was[was.length - 1 - tail] === now[now.length - 1 - tail]) tail++;
    return {head, was: was.length - tail, now: now.length - tail};
  }

  // Colours and numbers of the lines in sight: of thousands the browser lays out a hundred.
  function paint() {
    const top = Math.max(0, Math.floor(body.scrollTop / LINE) - AROUND);
    const end = Math.min(lines.length, top + Math.ceil(body.clientHeight / LINE) + 2 * AROUND);
    const before = lines.slice(0, top).join('\n');
    const begin = data.python ? '"""' : '/*';
    const inside = data.python ? before.split(begin).length % 2 === 0    // a string, or a comment, that began above
      : before.lastIndexOf('/*') > before.lastIndexOf('*/');
    colours.innerHTML = coloured((inside ? begin : '') + lines.slice(top, end).join('\n')).replace(inside ? begin : '', '');
    const first = edit ? edit.head + 1 : 0, last = edit ? Math.max(edit.now, first) : -1;
    const shown = Array.from({length: end - top}, (_, i) => top + i + 1);
    const counted = n => (data.counts?.[n] ? `<u>${data.counts[n]}</u> ` : '');
    numbers.firstElementChild.innerHTML = shown.map(n => counted(n) + (n >= first && n <= last ? `<b>${n}</b>` : n)).join('\n');
    colours.style.top = numbers.firstElementChild.style.top = `${top * LINE}px`;
  }

  function draw() {
    lines = text.value.split('\n');
    edit = changed(lines);
    const most = Math.max(0, ...Object.values(data.counts ?? {}));
    numbers.style.width = `${Math.max(3, String(lines.length).length) + (most ? String(most).length + 1 : 0)}ch`;
    const longest = lines.reduce((most, line) => Math.max(most, line.length), 40);
    code.style.height = numbers.style.height = `${lines.length * LINE + 12}px`;
    paint();
    code.style.minWidth = `${longest + 4}ch`;
    const placed = data.marks.map(mark => {
      if (!edit || mark.line <= edit.head) return mark;
      return {...mark, line: mark.line + edit.now - edit.was, old: mark.line <= edit.was};
    }).filter(mark => mark.line >= 1 && mark.line <= lines.length);
    marks.innerHTML = (data.chosen ? `<div class=chosen style="top:${(data.chosen - 1) * LINE + 6}px"></div>` : '') + placed.filter(mark => !mark.old).map(mark =>
      `<div class=mark style="top:${(mark.line - 1) * LINE + 6}px"><span style="left:${lines[mark.line - 1].length + 2}ch"></span></div>`
    ).join('') + hits.slice(0, MOST_HITS).map(([from, to], i) => {
      const line = lineOf(from), column = from - text.value.lastIndexOf('\n', from - 1) - 1;
      return `<u class="${i === hit ? 'now' : ''}" style="top:${(line - 1) * LINE + 6}px;left:${column}ch;width:${to - from}ch"></u>`;
    }).join('');
    placed.filter(mark => !mark.old).forEach((mark, i) => { marks.querySelectorAll('span')[i].textContent = `✕ ${mark.text}`; });
    errors.replaceChildren(...placed.map(mark => {
      const item = document.createElement('button');
      item.type = 'button';
      item.textContent = `✕ line ${mark.line}: ${mark.text}${mark.old ? ' (edited since)' : ''}`;
      item.className = mark.old ? 'old' : '';
      item.onclick = () => show(mark.line, true);
      return item;
    }));
    said.textContent = edit && was.length > 1 ? `Edited: ${edit.now <= edit.head + 1 ? `line ${edit.head + 1}` : `lines ${edit.head + 1} to ${edit.now}`}`
      : data.note;
    run.disabled = data.read || data.busy || !data.runnable && !edit;
    revert.disabled = !edit;
    places();
  }

  function places() {
    const found = [];
    lines.forEach((line, i) => {
      let match;
      if ((match = line.match(/^#line 1 "([^"]+)"/))) found.push([i + 2, `file ${match[1]}`]);
      else if (data.python) {
        if ((match = line.match(/^\s*(class|def)\s+(\w+)/))) found.push([i + 1, `${match[1]} ${match[2]}`]);
      } else if (/^\/\* variant/.test(line)) found.push([i + 1, 'header']);
      else if (/^(?:static\s+)?__global__/.test(line)) {
        const name = lines.slice(i, i + 4).join(' ').replace(/__launch_bounds__\s*\((?:[^()]|\([^()]*\))*\)/, '').match(/(\w+)\s*\(/);
        found.push([i + 1, `kernel ${name ? name[1] : ''}`]);
      } else if ((match = line.match(/^(?:inline\s+)?cudaError_t\s+(forward|grad_input|grad_weight|backward)\s*\(/))) {
        found.push([i + 1, `launcher ${match[1]}`]);
      }
    });
    const key = JSON.stringify(found);
    if (jump.dataset.key === key) return;
    jump.dataset.key = key;
    jump.hidden = !found.length;
    jump.replaceChildren(new Option('Jump to', ''), ...found.map(([line, name]) => new Option(`${name}, line ${line}`, line)));
  }

  function show(line, focus) {
    body.scrollTop = Math.max(0, (line - 6) * LINE);
    if (!focus) return;
    const place = text.value.split('\n').slice(0, line - 1).join('\n').length + (line > 1 ? 1 : 0);
    text.focus({preventScroll: true});
    text.setSelectionRange(place, place);
  }

  function inSight(line) {
    const top = (line - 1) * LINE + 6 - body.scrollTop;
    return top >= 0 && top + LINE <= body.clientHeight;
  }

  function search(step) {
    const wanted = find.value;
    const line = wanted.match(/^:(\d+)$/);
    hits = [];
    if (line) { show(+line[1]); count.textContent = ''; draw(); return; }
    if (wanted) {
      const source = text.value.toLowerCase(), sought = wanted.toLowerCase();
      for (let i = source.indexOf(sought); i >= 0; i = source.indexOf(sought, i + sought.length)) hits.push([i, i + wanted.length]);
    }
    hit = hits.length ? ((step ? hit + step : Math.max(hit, 0)) % hits.length + hits.length) % hits.length : -1;
    count.textContent = wanted ? `${hit + 1} of ${hits.length}` : '';
    draw();
    if (hit >= 0) show(lineOf(hits[hit][0]));
  }

  function start() {
    if (run.disabled) return;
    run.disabled = true;
    try { sessionStorage.setItem(ranOf(data.key), '1'); } catch { /* full */ }
    setTriggerValue('run', {key: data.key, text: text.value});
  }

  let asked = false;
  body.onscroll = () => {
    if (!asked) requestAnimationFrame(() => { asked = false; paint(); });
    asked = true;
  };
  text.oninput = () => { store(text.value); hits = []; hit = -1; count.textContent = ''; draw(); };
  text.onkeydown = event => {
    if (event.key === 'Tab' && !root.dataset.leave && !data.read) {
      event.preventDefault();
      document.execCommand('insertText', false, data.python ? '    ' : '  ');
    }
    root.dataset.leave = event.key === 'Escape' ? '1' : event.key === 'Shift' ? root.dataset.leave || '' : '';
  };
  body.onclick = event => {   // on a line, or on its number
    if (!data.counts || root.getRootNode().getSelection?.()?.toString() || getSelection()?.toString()) return;
    const line = Math.floor((event.clientY - body.getBoundingClientRect().top + body.scrollTop - 7) / LINE) + 1;
    if (data.counts[line]) setTriggerValue('picked', {key: data.key, line});
  };
  find.oninput = () => { hit = -1; search(0); };
  find.onkeydown = event => {
    if (event.key === 'Enter' && !event.ctrlKey) { event.preventDefault(); search(event.shiftKey ? -1 : 1); }
    if (event.key === 'Escape' && hit >= 0) { text.focus(); text.setSelectionRange(...hits[hit]); }
    event.stopPropagation();
  };
  at('.next').onclick = () => search(1);
  at('.previous').onclick = () => search(-1);
  jump.onchange = () => { if (jump.value) show(+jump.value, true); jump.value = ''; };
  root.onkeydown = event => {
    if (!(event.ctrlKey || event.metaKey)) return;
    if (event.key === 'Enter' && data.form) send();   // the button outside has this key
    else if (event.key === 'Enter') { event.preventDefault(); start(); }
    if (event.key.toLowerCase() === 'f') { event.preventDefault(); find.focus(); find.select(); }
  };
  text.onblur = send;
  run.onclick = start;
  revert.onclick = () => { text.value = data.text; store(data.text); draw(); send(); text.focus({preventScroll: true}); };

  forget();
  body.classList.toggle('counted', !!data.counts);
  run.textContent = data.label ?? '';
  run.hidden = !!(data.read || data.form);
  revert.hidden = !!(data.read || data.form && !data.text);
  text.readOnly = !!data.read;
  text.title = data.read ? 'Ctrl-F searches.' : 'Ctrl-Enter runs. Ctrl-F searches. Escape, then Tab, leaves the text.';
  text.setAttribute('aria-label', data.title);
  if (root.dataset.key !== data.key || root.kwText !== data.text) {   // another text, not a drawing of the same once more
    root.dataset.key = data.key;
    root.kwText = data.text;
    if (!putOnce()) text.value = stored() ?? data.text;
    root.kwSent = data.sent;
    if (data.height) body.style.height = `${data.height}px`;
    hits = [];
    draw();
    show(data.marks.length ? data.marks[0].line : edit && data.label ? edit.head + 1 : data.line);
    root.kwChosen = data.chosen;
    if (data.chosen) show(data.chosen);
  } else {
    putOnce();
    draw();
    if (data.chosen && root.kwChosen !== data.chosen && !inSight(data.chosen)) show(data.chosen);
    root.kwChosen = data.chosen;
  }
  if (data.form && document.activeElement?.shadowRoot?.activeElement !== text) send();   // also a draft of before a reload
}
