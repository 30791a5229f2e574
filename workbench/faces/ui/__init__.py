"""The page. Each of its pages is a module that ends in _page; the other modules are parts of pages.

The charts are drawn in drive/reporting, in `plots`, `compare_plots` and `tune_plots`; `theme` places them on a page. The picture of a layer is
drawn here, in `picture` and the modules beside it. `variant_rows` shows the variants with their tunables.
"""
