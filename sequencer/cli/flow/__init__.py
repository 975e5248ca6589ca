"""What a person sees of a graph: a table, a live board, a chart, a drawing, a picture."""
