package agg

// RunObserved is Run for explain: observe receives each stage's source and returns the one that the next stage reads.
// A last stage that writes is not run.
func (p *Pipeline) RunObserved(src Source, observe func(i int, src Source) Source) (Source, error) {
	stages := p.stages
	if _, writes := p.WritesTo(); writes {
		stages = stages[:len(stages)-1]
	}
	x := &exec{opts: p.opts, host: p.opts.Host}
	inSlots := p.StoreGroups()
	for i, s := range stages {
		x.last, x.slot = i == len(p.stages)-1, i < inSlots
		next, err := s.open(x, src)
		if err != nil {
			if src != nil {
				src.Close()
			}
			return nil, err
		}
		src = observe(i, next)
	}
	if src == nil {
		return NewSliceSource(nil), nil
	}
	return src, nil
}
