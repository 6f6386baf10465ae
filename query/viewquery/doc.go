// Package viewquery turns a find, count or distinct on a view into the stages that compute it on top of the view's
// own pipeline. Nodes and routers share it, so that both return the same results and explain shows what runs.
package viewquery
