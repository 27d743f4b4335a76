"""Where rows live: the tiers that answer a gather, from host memory outwards."""
