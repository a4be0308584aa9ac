"""The documents as a site: `python -m handbook build/site`.

Pages are the Markdown files of `docs/` and of the top of the tree, as they are; nothing is written for the site alone.
Three steps: `shelves` finds the pages and says where each stands in the navigation, `markdown` reads them (titles,
headings, links, texts), and `site` turns them into files, all of which are made before the first is written. A link
that leads nowhere, an anchor that no heading has, raw HTML, or a page without a title is a problem; with a problem
nothing is written.

The site is a folder of plain files. Every address in it is relative, so it can be served under any path, or opened from
a disk; scripts are classic ones, because browsers load no modules from there.
"""
