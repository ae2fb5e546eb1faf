"""Tools around training: comparisons of modes, reports, analyses, and the download of GSM8K."""
