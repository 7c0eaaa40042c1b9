# GKE with two small GPUs, made when replicas want them and gone when none does; the API is open to your
# address alone.

terraform {
  required_version = ">= 1.9"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = "~> 6.50"
    }
    helm = {
      source  = "hashicorp/helm"
      version = "~> 3.1"
    }
    kubernetes = {
      source  = "hashicorp/kubernetes"
      version = "~> 2.38"
    }
  }
}

variable "project" {
  type        = string
  description = "Id of the project."
}

variable "region" {
  type        = string
  description = "Region of Google Cloud."
  default     = "europe-west4"
}

variable "my_cidr" {
  type        = string
  description = "Your own address, such as 203.0.113.7/32: the Kubernetes API is open to it."
}

variable "billing_account" {
  type        = string
  description = "Billing account that pays for the project."
}

variable "budget_email" {
  type        = string
  description = "Who is told when the month becomes dear."
}

provider "google" {
  project               = var.project
  region                = var.region
  user_project_override = true # the API of budgets asks for a project that pays for the call
  billing_project       = var.project
}

data "google_client_config" "this" {}

provider "kubernetes" {
  host                   = "https://${module.cluster.cluster_endpoint}"
  cluster_ca_certificate = base64decode(module.cluster.cluster_ca)
  token                  = data.google_client_config.this.access_token
}

provider "helm" {
  kubernetes = {
    host                   = "https://${module.cluster.cluster_endpoint}"
    cluster_ca_certificate = base64decode(module.cluster.cluster_ca)
    token                  = data.google_client_config.this.access_token
  }
}

module "cluster" {
  source = "../../../modules/gcp"

  project             = var.project
  region              = var.region
  zones               = ["${var.region}-b"]
  name                = "chairlift-small"
  api_cidrs           = [var.my_cidr]
  flow_logs           = false
  system_pool         = { min = 1, max = 3 }
  gpu_pools           = { l4 = { machine_type = "g2-standard-16", gpu_type = "nvidia-l4", gpu_count = 1, max = 2 } }
  budget              = { billing_account = var.billing_account, monthly = 1500, emails = [var.budget_email] }
  deletion_protection = false
}

module "service" {
  source = "../../../modules/service"

  service_account_annotations = module.cluster.service_account_annotations
  node_ports                  = module.cluster.node_ports
}

output "kubeconfig" {
  description = "The command that lets kubectl in."
  value       = "gcloud container clusters get-credentials ${module.cluster.cluster_name} --region ${var.region} --project ${var.project}"
}

output "weights_bucket" {
  description = "Where the weights belong."
  value       = module.cluster.weights_bucket
}
