package value

import "slices"

// Work reports whether the operation that a computation is for has to stop: it was killed, its time is over, or its client
// has disconnected.
type Work interface{ Check() error }

// stepsPerCheck is the number of steps between two checks.
const stepsPerCheck = 512

// Pace checks a Work once in many steps. The zero value never stops.
type Pace struct {
	Work  Work
	steps uint32
}

// Check returns an error if the operation has to stop; it is cheap enough to be called for each element of an array.
func (p *Pace) Check() error {
	return p.Steps(1)
}

// Charge counts steps whose number was not known before; the next Check takes them into account.
func (p *Pace) Charge(n int) { p.steps += uint32(n) }

// Now checks at once; it is for use before something that takes long by itself.
func (p *Pace) Now() error {
	if p.Work == nil {
		return nil
	}
	return p.Work.Check()
}

// Steps is Check for n steps at once.
func (p *Pace) Steps(n int) error {
	if p.steps += uint32(n); p.steps < stepsPerCheck {
		return nil
	}
	p.steps = 0
	return p.Now()
}

// sortBlock is the number of elements that SortStable orders between two checks.
const sortBlock = 256

// SortStable sorts a list stably, unless the operation has to stop.
func SortStable[E any](list []E, pace *Pace, compare func(a, b E) int) error {
	if slices.IsSortedFunc(list, compare) {
		return nil
	}
	for i := 0; i < len(list); i += sortBlock {
		slices.SortStableFunc(list[i:min(i+sortBlock, len(list))], compare)
		if err := pace.Steps(sortBlock); err != nil {
			return err
		}
	}
	from, to := list, make([]E, len(list))
	for width := sortBlock; width < len(list); width *= 2 {
		for i := 0; i < len(list); i += 2 * width {
			a, b := from[i:min(i+width, len(list))], from[min(i+width, len(list)):min(i+2*width, len(list))]
			if err := merge(to[i:i+len(a)+len(b)], a, b, pace, compare); err != nil {
				return err
			}
		}
		from, to = to, from
	}
	copy(list, from)
	return nil
}

func merge[E any](to, a, b []E, pace *Pace, compare func(a, b E) int) error {
	for i := range to {
		if len(b) == 0 || len(a) > 0 && compare(a[0], b[0]) <= 0 {
			to[i], a = a[0], a[1:]
		} else {
			to[i], b = b[0], b[1:]
		}
		if err := pace.Check(); err != nil {
			return err
		}
	}
	return nil
}
