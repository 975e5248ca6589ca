"""Which step comes next: the resolver of lines, and the reader of flowcharts."""
