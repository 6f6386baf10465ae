package value

// Work tells whoever computes for an operation whether that has to stop: it was killed, its time is over, or its client is
// gone.
type Work interface{ Check() error }

// stepsPerCheck is how many steps are taken between two questions.
const stepsPerCheck = 512

// Pace asks a Work once in many steps. The zero value never stops.
type Pace struct {
	Work  Work
	steps uint32
}

// Check is nil unless the operation has to stop; it is cheap enough to be called for each element of an array.
func (p *Pace) Check() error {
	if p.steps++; p.steps%stepsPerCheck == 0 && p.Work != nil {
		return p.Work.Check()
	}
	return nil
}

// Steps is Check for so many steps at once.
func (p *Pace) Steps(n int) error {
	before := p.steps / stepsPerCheck
	if p.steps += uint32(n); p.steps/stepsPerCheck != before && p.Work != nil {
		return p.Work.Check()
	}
	return nil
}
