"""The page. Each of its seven pages is a module that ends in _page; the other modules are parts of pages.

The charts are drawn in drive/reporting/plots.py and compare_plots.py; `theme` places them on a page. The picture of a layer is
drawn here, in `picture` and the modules beside it. `variant_rows` shows the variants with their tunables.
"""
