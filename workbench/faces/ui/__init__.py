"""The page.

pages         `workbench_page`, `tune_page`, `compare_page`, `bench_page`, `inspect_page`, `machine_page`, `check_page`,
              `export_page`, `model_page`; `pages` has their order
Workbench     `layer_form` (the sidebar), `variant_rows` (the variants with their tunables), `best_box` (the button that selects
              the best known), `running` (a run in progress), `results` (the table)
Tune          `layer_form`, `tune_panels` (figures and tables)
Inspect       `machine_code_view`, `profile_view`, `source_view` (edit, diff and ladder; the editor itself is
              editor.js)
layer picture `picture`, `picture_row` (one dimension), `picture_grid` (two), `picture_axis`, `picture_style`
all pages     `state` (what they share), `address` (what a link stores and restores), `theme` (looks, charts), `allowed_hosts`
              (which hosts may access the server)

The charts are drawn in plots.py, compare_plots.py and tune_plots.py of drive/reporting; `theme` places them on a page.
"""
