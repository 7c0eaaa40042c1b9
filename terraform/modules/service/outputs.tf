output "namespace" {
  description = "Namespace of the service."
  value       = kubernetes_namespace_v1.this.metadata[0].name
}
