"""What trains nothing: comparisons, reports, analysis, planted faults, data fetching."""
