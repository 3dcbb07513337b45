// What is wrong with names, references, tables, headings, landmarks and sizes.
(() => {
  const wrong = [], ids = new Set();
  const visible = (element) => element.checkVisibility({visibilityProperty: true});
  const name = (element) => (element.getAttribute('aria-label') || (element.getAttribute('aria-labelledby') || '').split(' ')
    .map((id) => (document.getElementById(id) || {textContent: ''}).textContent).join(' ').trim()
    || (element.labels && [...element.labels].map((label) => label.textContent).join(' ')) || element.textContent).trim();
  for (const element of document.querySelectorAll('[id]')) {
    if (ids.has(element.id)) wrong.push(`two elements have the id ${element.id}`);
    ids.add(element.id);
  }
  for (const attribute of ['aria-labelledby', 'aria-describedby'])
    for (const element of document.querySelectorAll(`[${attribute}]`))
      for (const id of element.getAttribute(attribute).split(' ')) if (!ids.has(id)) wrong.push(`${attribute} names ${id}`);
  for (const element of document.querySelectorAll('button, a, select, input, summary, [role=img], [role=region], [role=group]'))
    if (visible(element) && !name(element)) wrong.push(`no name: ${element.outerHTML.slice(0, 100)}`);
  for (const table of document.querySelectorAll('table')) {
    if (!visible(table)) continue;
    if (!table.caption || !table.caption.textContent) wrong.push(`no caption: ${table.id}`);
    for (const cell of table.querySelectorAll('th')) if (!cell.scope) wrong.push(`no scope: ${table.id}`);
    for (const row of table.querySelectorAll('tbody tr:not(.particulars)'))
      if (row.children.length > 1 && row.children[0].tagName !== 'TH') wrong.push(`a row without a head: ${table.id}`);
  }
  let level = 0;
  for (const heading of document.querySelectorAll('h1, h2, h3, h4')) {
    if (!visible(heading)) continue;
    const next = Number(heading.tagName[1]);
    if (next > level + 1) wrong.push(`from h${level} to h${next}: ${heading.textContent}`);
    level = next;
  }
  for (const one of ['main', 'h1', 'header', 'footer', 'title'])
    if (!document.querySelector(one)) wrong.push(`no ${one}`);
  if (document.querySelectorAll('main').length !== 1 || document.querySelectorAll('h1').length !== 1) wrong.push('two mains');
  for (const element of document.querySelectorAll('[tabindex]')) if (element.tabIndex > 0) wrong.push('tabindex above 0');
  for (const box of document.querySelectorAll('button, select, input')) {
    const rect = box.getBoundingClientRect();
    if (visible(box) && (rect.height < 22 || rect.width < 16)) wrong.push(`too small to hit: ${box.outerHTML.slice(0, 90)}`);
  }
  return wrong;
})()
